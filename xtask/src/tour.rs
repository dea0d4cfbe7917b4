//! `cargo xtask run`: builds what a visitor needs and shows it.

use std::path::Path;

use anyhow::Result;

use crate::codegen::{self, Mode};
use crate::command;

/// Generates, builds and takes the tour.
pub fn run(root: &Path) -> Result<()> {
    codegen::run(root, Mode::Write)?;
    command::run(root, "cargo", &["run", "--quiet", "--package", "lz-ops", "--example", "tour"])
}
