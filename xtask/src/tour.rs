//! `cargo xtask run`: sets up what a visitor needs and shows it.

use std::path::Path;

use anyhow::Result;

use crate::codegen::{self, Mode};
use crate::{command, python};

/// Generates, builds, installs and takes the tour.
pub fn run(root: &Path) -> Result<()> {
    codegen::run(root, Mode::Write)?;
    let interpreter = python::install(root)?;
    command::run(root, &interpreter.to_string_lossy(), &["examples/python/tour.py"])
}
