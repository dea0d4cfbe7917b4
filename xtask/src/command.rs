//! Other programs, run where their output can be seen.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs a program in a folder with its output passed through; anything but success is an error that names the command.
pub fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    run_with(folder, program, arguments, &[])
}

/// As [`run`], with variables added to the environment.
pub fn run_with(
    folder: &Path,
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &Path)],
) -> Result<()> {
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(folder)
        .status()
        .with_context(|| format!("could not start {program}"))?;
    if !status.success() {
        bail!("`{program} {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}
