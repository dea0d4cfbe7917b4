//! Options of a worker process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lz_engine::telemetry::Telemetry;

use crate::sandbox::Sandbox;

/// Options of a worker process.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Additional environment variables.
    pub environment: Vec<(OsString, OsString)>,
    /// Bytes of the arena that stay committed between calls.
    pub arena_bytes: usize,
    /// Bytes to which the arena grows for large calls.
    pub arena_limit: usize,
    /// Deadline of a call, and of waiting for a free slot or arena memory.
    pub deadline: Duration,
    /// Deadline of the start.
    pub start_deadline: Duration,
    /// Limit of its private memory in bytes; it is stopped above it.
    pub memory_limit: Option<u64>,
    /// The folder of the cgroup that it joins.
    pub cgroup: Option<PathBuf>,
    /// How it confines itself after it has loaded its backend.
    pub sandbox: Sandbox,
    /// Where it runs and the source of that setting, for explanations.
    pub runs_in: String,
    /// Records IPC latency and restarts.
    pub telemetry: Option<Arc<Telemetry>>,
}

impl WorkerOptions {
    /// A program with the default limits: an arena of 256 MiB that grows to 4 GiB, 30 seconds per call, one minute to start.
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
            sandbox: Sandbox::level("network"),
            runs_in: "a worker process".to_owned(),
            telemetry: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> WorkerOptions {
        self.arguments.push(argument.into());
        self
    }
}
