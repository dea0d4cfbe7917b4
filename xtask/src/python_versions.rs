//! The exact versions of Python packages that tests use, one file per version of Python.
//!
//! Without them a new release of any package can fail the tests of an unchanged checkout. A version of Python without a file gets
//! the newest releases in the ranges of each group.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{files, python};

/// The file with the versions for this interpreter, if there is one.
pub fn constraints(root: &Path, python: &Path) -> Result<Option<PathBuf>> {
    let file = file_for(root, python)?;
    Ok(file.is_file().then_some(file))
}

/// Installs the newest releases in the ranges of all groups into a new virtual environment, and writes their versions.
pub fn update(root: &Path) -> Result<()> {
    let file = file_for(root, Path::new("python3"))?;
    if file.is_file() {
        fs::remove_file(&file)?;
    }
    let venv = root.join(".venv");
    if venv.is_dir() {
        fs::remove_dir_all(&venv)?;
    }
    python::install_packages(root)?;
    let python = python::ensure_venv(root)?;
    let freeze = [
        "-m",
        "pip",
        "freeze",
        "--disable-pip-version-check",
        "--exclude-editable",
        "--exclude",
        "layerzero",
    ];
    let apart = python::sglang_imports(root)?.to_string_lossy().into_owned();
    let of_sglang = ["-m", "pip", "freeze", "--disable-pip-version-check", "--path", &apart];
    let versions = stdout_of(&python, &freeze)? + &stdout_of(&python, &of_sglang)?;
    let mut lines: Vec<&str> = versions.lines().collect();
    lines.sort_unstable_by_key(|line| line.to_lowercase());
    files::write(&file, &(lines.join("\n") + "\n"))?;
    println!("wrote {}", file.display());
    Ok(())
}

fn file_for(root: &Path, python: &Path) -> Result<PathBuf> {
    let version = stdout_of(python, &["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])?;
    Ok(root.join(format!("xtask/constraints/python-{}.txt", version.trim())))
}

fn stdout_of(python: &Path, arguments: &[&str]) -> Result<String> {
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
