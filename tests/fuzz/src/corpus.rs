//! The checked-in corpus.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Target;

/// The folder of a target's corpus.
pub fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The inputs of a target, sorted by name.
///
/// # Panics
/// If the folder cannot be read.
pub fn read(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = folder(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let path = entry.expect("an entry of the corpus").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        })
        .collect();
    inputs.sort();
    inputs
}
