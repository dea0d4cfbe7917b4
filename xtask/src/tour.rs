//! `cargo xtask run`: builds and installs the Python package and runs the tour example.

use std::path::Path;

use anyhow::Result;

use crate::codegen::{self, Mode};
use crate::{command, python};

/// Generates code, builds and installs the package, and runs the tour.
pub fn run(root: &Path) -> Result<()> {
    codegen::run(root, Mode::Write)?;
    let interpreter = python::install(root)?;
    command::run(root, &interpreter.to_string_lossy(), &["examples/python/tour.py"])
}
