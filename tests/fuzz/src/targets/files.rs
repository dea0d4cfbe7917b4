//! Files of targets whose code reads paths.

use std::path::PathBuf;

use lz_test_support::Folder;

thread_local! {
    /// Removed when the thread ends.
    static FOLDER: Folder = Folder::new();
}

/// The path of a file in a temporary folder of this thread.
pub fn path(name: &str) -> PathBuf {
    FOLDER.with(|folder| folder.file(name))
}

/// Writes a file; the previous one of this name is replaced, not overwritten, because it may still be mapped.
pub fn write(name: &str, content: &[u8]) -> PathBuf {
    let path = path(name);
    std::fs::remove_file(&path).ok();
    std::fs::write(&path, content).expect("the temporary folder can be written");
    path
}
