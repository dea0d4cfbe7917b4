//! torch in a process of its own: told a workload, it makes the tensors and takes its turns when asked.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cases::Case;

/// The other side of the conversation.
const SCRIPT: &str = include_str!("peer.py");

/// A peer, or the reason why there is none.
pub struct Peer {
    talking: Option<Talking>,
    described: String,
}

struct Talking {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the Python that `LZ_BENCH_PYTHON` names, or the one of the checkout's `.venv`; without torch in it there is no peer.
    pub fn start() -> Peer {
        let checkout = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
        let python = std::env::var_os("LZ_BENCH_PYTHON").map_or_else(checkout, PathBuf::from);
        let absent = |why: String| Peer { talking: None, described: format!("peer: none ({why})") };
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
        let mut talking = Talking { child, to, from: BufReader::new(from) };
        match talking.hear() {
            Some(Value::String(version)) => {
                Peer { talking: Some(talking), described: format!("peer: torch {version}") }
            }
            _ => absent("torch cannot be imported".to_owned()),
        }
    }

    /// What it is.
    pub fn describe(&self) -> String {
        self.described.clone()
    }

    /// Makes it ready for a case; `false` if it knows no way to do it.
    pub fn prepare(&mut self, case: &Case, threads: usize) -> bool {
        let Some(talking) = &mut self.talking else { return false };
        let mut told = case.told.clone();
        told["threads"] = json!(threads);
        talking.say(&told);
        talking.hear() == Some(Value::Bool(true))
    }

    /// Nanoseconds of one run, counted as ours are.
    pub fn turn(&mut self, length: Duration) -> Option<f64> {
        let talking = self.talking.as_mut()?;
        talking.say(&json!({ "turn": length.as_secs_f64() }));
        talking.hear()?.as_f64()
    }
}

impl Talking {
    fn say(&mut self, value: &Value) {
        // A peer that is gone answers nothing, and that is noticed there.
        let _gone = writeln!(self.to, "{value}").and_then(|()| self.to.flush());
    }

    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.from.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        let _gone = self.child.kill().and_then(|()| self.child.wait());
    }
}
