//! `cargo xtask docs`: builds the documentation site into `target/site`: the pages of `docs/`, the operations, the Python API, the
//! notebooks and rustdoc. A link that leads nowhere is an error.

use std::path::Path;

use anyhow::{Context, Result};

use crate::{command, python, python_packages, test};

/// Builds the site.
pub fn run(root: &Path) -> Result<()> {
    let python = python::install(root)?;
    python_packages::ensure_docs_tools(root)?;
    test::doc(root)?;
    pages(root, &python)?;
    println!("open target/site/index.html");
    Ok(())
}

/// Builds the pages, with a link to rustdoc.
fn pages(root: &Path, python: &Path) -> Result<()> {
    let script = ["xtask/src/docs/build_site.py", "target/site"];
    command::run(root, &python.to_string_lossy(), &script).context("building the documentation site")
}
