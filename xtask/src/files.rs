//! Files of the repository: all below a folder, paths from the root, writing with the folders above.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Writes a file, and the folders above it.
pub fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Creates a folder, or removes what it contains.
pub fn create_empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}

/// A path from the root, with forward slashes.
pub fn relative(root: &Path, path: &Path) -> Result<String> {
    Ok(path.strip_prefix(root)?.to_string_lossy().replace('\\', "/"))
}

/// Every file below a folder, sorted; nothing if the folder does not exist. Links are skipped: they repeat files of the repository.
pub fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return Ok(found) };
    for entry in entries {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            found.extend(walk(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The only file with this extension in a folder.
pub fn only(folder: &Path, extension: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|one| one == extension) {
            found.push(path);
        }
    }
    ensure!(
        found.len() == 1,
        "expected one file with the extension {extension} in {}, found {}",
        folder.display(),
        found.len()
    );
    found.pop().context("the list is empty")
}
