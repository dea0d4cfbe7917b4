//! Runs other programs with their output passed through.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

use crate::progress;

/// Where Python keeps the bytecode of the files that it imports, also on machines whose setting is to write none next to the sources:
/// compiling torch's files takes longer than most tests, and hundreds of tests import torch in a process of their own.
const BYTECODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bytecode");

/// Runs a program in a folder with its output passed through; any exit status but success is an error that names the command.
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
    let status = command(folder, program, arguments, environment)
        .status()
        .with_context(|| format!("could not start {program}"))?;
    check(status, program, arguments)
}

/// Runs cargo and reports build progress.
pub fn cargo(folder: &Path, arguments: &[&str]) -> Result<()> {
    build(folder, "cargo", arguments, &[])
}

/// Runs a program that runs cargo, such as maturin or CMake, and reports build progress.
///
/// On a terminal cargo draws its own progress bar. Otherwise [`progress`] prints a line every few seconds. Cargo must not be
/// given `--quiet`, which turns off both.
pub fn build(folder: &Path, program: &str, arguments: &[&str], environment: &[(&str, &Path)]) -> Result<()> {
    if io::stderr().is_terminal() {
        return run_with(folder, program, arguments, environment);
    }
    let mut child = command(folder, program, arguments, environment)
        .envs(progress::ENVIRONMENT)
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {program}"))?;
    let stderr = child.stderr.take().context("the stderr of the child process is not piped")?;
    let forwarded = progress::forward(stderr, io::stderr());
    let status = child.wait().with_context(|| format!("could not wait for {program}"))?;
    check(status, program, arguments)?;
    forwarded.with_context(|| format!("could not forward the output of {program}"))
}

fn command(folder: &Path, program: &str, arguments: &[&str], environment: &[(&str, &Path)]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .env("PYTHONPYCACHEPREFIX", BYTECODE)
        .envs(environment.iter().copied())
        .current_dir(folder);
    command
}

fn check(status: ExitStatus, program: &str, arguments: &[&str]) -> Result<()> {
    if !status.success() {
        bail!("`{program} {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}
