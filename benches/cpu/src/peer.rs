//! The torch peer, in a separate process: it receives a workload, creates the tensors, and runs samples on
//! request.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cases::Case;

/// The peer's program.
const SCRIPT: &str = include_str!("peer.py");

/// A peer, or the reason why there is none.
pub struct Peer {
    connection: Option<Connection>,
    description: String,
}

struct Connection {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the Python interpreter given by `LZ_BENCH_PYTHON`, or the one of the checkout's `.venv`;
    /// without torch there is no peer.
    pub fn start() -> Peer {
        let checkout = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
        let python = std::env::var_os("LZ_BENCH_PYTHON").map_or_else(checkout, PathBuf::from);
        let absent = |why: String| Peer { connection: None, description: format!("peer: none ({why})") };
        let spawned = Command::new(python)
            .args(["-u", "-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => return absent(error.to_string()),
        };
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return absent("no pipes".to_owned());
        };
        let mut connection = Connection { child, to, from: BufReader::new(from) };
        match connection.receive() {
            Some(Value::String(version)) => {
                Peer { connection: Some(connection), description: format!("peer: torch {version}") }
            }
            _ => absent("torch cannot be imported".to_owned()),
        }
    }

    /// Description for the report.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Prepares the peer for a case; `false` if it does not support it.
    pub fn prepare(&mut self, case: &Case, threads: usize) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let mut workload = case.description.clone();
        workload["threads"] = json!(threads);
        connection.send(&workload);
        connection.receive() == Some(Value::Bool(true))
    }

    /// Nanoseconds per run, measured as ours.
    pub fn sample(&mut self, length: Duration) -> Option<f64> {
        let connection = self.connection.as_mut()?;
        connection.send(&json!({ "sample": length.as_secs_f64() }));
        connection.receive()?.as_f64()
    }
}

impl Connection {
    fn send(&mut self, value: &Value) {
        // If the peer has exited, the next `receive` fails.
        let _gone = writeln!(self.to, "{value}").and_then(|()| self.to.flush());
    }

    fn receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.from.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _gone = self.child.kill().and_then(|()| self.child.wait());
    }
}
