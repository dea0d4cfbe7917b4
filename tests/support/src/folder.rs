//! Temporary directory of a test or benchmark, removed at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory that is removed on drop.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Default for Folder {
    fn default() -> Self {
        Folder::new()
    }
}

impl Folder {
    /// Creates an empty directory.
    ///
    /// # Panics
    /// If the directory cannot be created.
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lz-test-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("cannot create a temporary directory");
        Folder(path)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of a file in the directory; the file need not exist.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, content).expect("cannot write a temporary file");
        path
    }

    /// Path of a PerfDB in the directory; the file need not exist.
    pub fn database(&self) -> PathBuf {
        self.file("perfdb.sqlite")
    }

    /// Sorted names of the files whose name contains `part`.
    ///
    /// # Panics
    /// If the directory cannot be read.
    pub fn names_with(&self, part: &str) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the directory exists");
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.contains(part))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Best effort: leftovers stay in the system's temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
