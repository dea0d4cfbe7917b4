//! `cargo xtask fmt`: formats all hand-written Rust.
//!
//! `cargo fmt` does not find the reference implementations: their `mod` items are in generated files, which it skips.

use std::path::Path;

use anyhow::{Result, bail};

use crate::{codegen, command};

/// Formats the workspace and the references. With `--check`, fails on unformatted files instead.
pub fn run(root: &Path, options: &[&str]) -> Result<()> {
    command::run(root, "cargo", &[&["fmt", "--all"], options].concat())?;
    let files: Vec<String> = codegen::walk(&root.join("lz-ops/src/reference"))?
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.display().to_string())
        .collect();
    let mut arguments = vec!["--edition", "2024"];
    arguments.extend(options);
    arguments.extend(files.iter().map(String::as_str));
    if command::run(root, "rustfmt", &arguments).is_err() {
        bail!("the files above are not formatted; run `cargo xtask fmt`");
    }
    Ok(())
}
