//! The Python side of the house: a `.venv` in the checkout, the package built into it, its tests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command;

/// What building and testing the package needs. Heavy packages (torch and what leans on it) are a group of their own.
const PACKAGES: [&str; 4] = ["maturin>=1.16,<2", "numpy>=2", "ml_dtypes>=0.5", "pytest>=8"];

/// Makes the virtual environment and installs what is missing; quick when nothing is.
pub fn ensure_venv(root: &Path) -> Result<PathBuf> {
    let venv = root.join(".venv");
    let python = venv.join("bin/python");
    if !python.is_file() {
        command::run(root, "python3", &["-m", "venv", ".venv"]).context("making .venv")?;
    }
    let stamp = venv.join("layerzero-packages.txt");
    let wanted = PACKAGES.join("\n");
    if std::fs::read_to_string(&stamp).unwrap_or_default() != wanted {
        let mut arguments = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        arguments.extend(PACKAGES);
        command::run(root, &python.to_string_lossy(), &arguments).context("installing Python packages")?;
        std::fs::write(&stamp, wanted)?;
    }
    Ok(python)
}

/// Builds the package with the profile that everything else uses and installs it into the virtual environment.
pub fn install(root: &Path) -> Result<PathBuf> {
    let python = ensure_venv(root)?;
    let folder = root.join("bindings/python");
    let arguments = ["-m", "maturin", "develop", "--quiet"];
    command::run_with(
        &folder,
        &python.to_string_lossy(),
        &arguments,
        &[("VIRTUAL_ENV", &root.join(".venv"))],
    )
    .context("building the Python package")?;
    Ok(python)
}

/// Runs the package's tests.
pub fn test(root: &Path) -> Result<()> {
    let python = install(root)?;
    command::run(&root.join("bindings/python"), &python.to_string_lossy(), &["-m", "pytest", "-q"])
}
