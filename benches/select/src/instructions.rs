//! Counting the instructions of one function of a program with callgrind, which does not care how busy the machine is.

use std::path::Path;
use std::process::Command;

/// Whether there is anything to count with.
pub fn can_count() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Instructions that a program executes inside a function, and what that calls; `None` if it cannot be counted.
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
