//! How a worker is run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How a worker is run.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Bytes for tensors that stay allocated between calls.
    pub arena_bytes: usize,
    /// Bytes to which the memory for tensors grows for large calls.
    pub arena_limit: usize,
    /// How long a call may run, and how long it may wait for a free slot and for memory.
    pub deadline: Duration,
    /// How long the start may take.
    pub start_deadline: Duration,
    /// The most memory of its own that it may have, in bytes; above that it is stopped.
    pub memory_limit: Option<u64>,
    /// The folder of a control group that it joins.
    pub cgroup: Option<PathBuf>,
    /// Where it runs and who said so, for explanations.
    pub runs_in: String,
}

impl WorkerOptions {
    /// A program with the usual limits: 256 MiB for tensors, growing to 4 GiB, 30 seconds a call, a minute to start.
    pub fn new(program: impl Into<PathBuf>) -> WorkerOptions {
        WorkerOptions {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            arena_bytes: 256 << 20,
            arena_limit: 4 << 30,
            deadline: Duration::from_secs(30),
            start_deadline: Duration::from_secs(60),
            memory_limit: None,
            cgroup: None,
            runs_in: "a worker process".to_owned(),
        }
    }

    /// With one more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> WorkerOptions {
        self.arguments.push(argument.into());
        self
    }
}
