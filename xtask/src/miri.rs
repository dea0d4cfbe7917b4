//! `cargo xtask miri`: the unsafe code of tensors and arguments under Miri, which interprets a program and reports undefined behavior.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Contracts are read from files. Rounding errors that Miri adds to floats on purpose are left out: results of
/// conversions are compared bit by bit.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-deterministic-floats";

/// Runs the unit tests of `lz-core`. Arguments go to the tests, such as the name of one. The suite reads schemas, which takes too long.
pub fn run(root: &Path, filters: &[&str]) -> Result<()> {
    let installed = Command::new("cargo").args(["miri", "--version"]).current_dir(root).output();
    ensure!(
        installed.is_ok_and(|output| output.status.success()),
        "Miri is not installed for this toolchain; it is a component of nightly ones: `rustup toolchain install nightly --component miri`, \
         then `RUSTUP_TOOLCHAIN=nightly cargo xtask miri`"
    );
    let status = Command::new("cargo")
        .args(["miri", "test", "--package", "lz-core", "--lib", "--"])
        .args(filters)
        .env("MIRIFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", root.join("target/miri"))
        .current_dir(root)
        .status()
        .context("could not start cargo miri")?;
    ensure!(status.success(), "tests failed under Miri ({status})");
    Ok(())
}
