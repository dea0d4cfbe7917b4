//! Lockfiles that are written, truncated and replaced: a reader gets the decisions that were written, or an error.

use std::fs::{self, OpenOptions};
use std::path::Path;

use lz_engine::Engine;
use lz_engine::table::Lockfile;

use crate::counters::{self, Counter};
use crate::random::Random;

/// The name of the lockfile in the folder of a run.
pub const NAME: &str = "layerzero.lock";

/// Writes the decisions of an engine atomically, or reads what is there. The error is a violation.
pub fn write_or_read(engine: &Engine, folder: &Path, random: &mut Random, number: u64) -> Result<(), String> {
    let path = folder.join(NAME);
    if random.once_in(2) {
        let next = folder.join(format!("{NAME}.{number}"));
        if fs::write(&next, engine.freeze().text()).is_ok() {
            fs::rename(&next, &path).ok();
        }
        fs::remove_file(&next).ok();
        return Ok(());
    }
    let Ok(text) = fs::read_to_string(&path) else { return Ok(()) };
    match Lockfile::read(NAME, &text) {
        // The digest protects all decisions, so that an accepted file has those that a process wrote; comments may change.
        Ok(lockfile) if same_decisions(&lockfile.text(), &text) => {
            counters::add(Counter::LockfilesRead);
            Ok(())
        }
        Ok(lockfile) => Err(format!("a changed lockfile was accepted:\n{text}\nas\n{}", lockfile.text())),
        Err(error) if error.report.diagnostics.iter().all(|one| !one.labels.is_empty()) => {
            counters::add(Counter::LockfilesRefused);
            Ok(())
        }
        Err(error) => Err(format!("an error without a location: {error}")),
    }
}

/// Whether two files have the same lines, apart from comments.
fn same_decisions(one: &str, other: &str) -> bool {
    fn lines(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter(|line| !line.starts_with('#'))
    }
    lines(one).eq(lines(other))
}

/// Truncates the file, changes a byte of it, or replaces it; from outside.
pub fn damage(folder: &Path, random: &mut Random) -> &'static str {
    let path = folder.join(NAME);
    let Ok(mut bytes) = fs::read(&path) else { return "lockfiles not there yet" };
    let at = random.below(bytes.len() as u64) as usize;
    match random.below(3) {
        0 => {
            if let Ok(file) = OpenOptions::new().write(true).open(&path) {
                file.set_len(at as u64).ok();
            }
            "lockfiles truncated"
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = if *byte == b'7' { b'8' } else { b'7' };
            }
            fs::write(&path, bytes).ok();
            "lockfiles changed"
        }
        _ => {
            fs::write(&path, b"version: 1\ndecisions: []\n").ok();
            "lockfiles replaced"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::same_decisions;

    #[test]
    fn only_comments_may_differ() {
        let text = "# The decisions of a run.\nversion: 1\n";
        assert!(same_decisions(text, "# The decisions of a7run.\nversion: 1\n"));
        assert!(!same_decisions(text, "# The decisions of a run.\nversion: 7\n"));
    }
}
