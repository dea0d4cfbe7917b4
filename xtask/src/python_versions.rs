//! The exact versions of Python packages that tests use, one file per version of Python.
//!
//! Without them a new release of any package can fail the tests of an unchanged checkout. A version of Python without a file gets
//! the newest releases in the ranges of each group.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The file with the versions for this interpreter, if there is one.
pub fn constraints(root: &Path, python: &Path) -> Result<Option<PathBuf>> {
    let file = file_for(root, python)?;
    Ok(file.is_file().then_some(file))
}

/// The file for a version of Python.
pub fn file_for(root: &Path, python: &Path) -> Result<PathBuf> {
    let version = stdout_of(python, &["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])?;
    Ok(root.join(format!("xtask/constraints/python-{}.txt", version.trim())))
}

/// What an interpreter prints.
pub fn stdout_of(python: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(python)
        .args(arguments)
        .output()
        .with_context(|| format!("starting {}", python.display()))?;
    ensure!(
        output.status.success(),
        "{} failed: {}",
        python.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
