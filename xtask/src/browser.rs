//! Tests of the page of `lz.serve` in a real browser, which is installed where that is possible.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::python;

/// Programs that the tests can use; the same as in `bindings/python/tests/browser/browser.py`.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Runs the tests, or reports that they are skipped.
pub fn test(root: &Path) -> Result<()> {
    if !ensure() {
        println!(
            "SKIPPED: tests in a browser, because Chromium is not installed and could not be; run `apt-get install chromium`"
        );
        return Ok(());
    }
    let python = python::install(root)?;
    python::pytest(root, &python, "tests/browser", &[])
}

/// Installs a browser if there is none. Returns whether there is one.
pub fn ensure() -> bool {
    if !is_installed() {
        install();
    }
    is_installed()
}

fn is_installed() -> bool {
    PROGRAMS.iter().any(|program| succeeds(program, &["--version"]))
}

/// Installs Debian's package; fails without the rights or without a network.
fn install() {
    println!("installing chromium");
    if succeeds("apt-get", &["update", "-qq"]) {
        succeeds(
            "apt-get",
            &["install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
        );
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
