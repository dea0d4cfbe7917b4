//! Counts the instructions of one function of a program with callgrind, independent of machine load.

use std::path::Path;
use std::process::Command;

/// Whether valgrind is installed.
pub fn can_count() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Instructions that a program executes inside a function, including callees; `None` if they cannot be
/// counted.
pub fn count(program: &Path, argument: &str, function: &str) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(program)
        .arg(argument)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let (_, after) = text.split_once("Collected :")?;
    after.split_whitespace().next()?.parse().ok()
}
