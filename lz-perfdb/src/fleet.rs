//! The file with measurements of other machines, next to the database of this one. Engines read it and never write it, so that
//! measurements of this machine stay separate.

use std::fs;
use std::path::{Path, PathBuf};

use super::Filter;
use super::merge::{MergeError, check_reads, open_existing};

/// The file that belongs to a database: `perfdb.fleet.sqlite` next to `perfdb.sqlite`.
pub fn fleet_file(database: &Path) -> PathBuf {
    let name = database.file_stem().unwrap_or_default().to_string_lossy();
    let extension = database.extension().map_or("sqlite".into(), |extension| extension.to_string_lossy());
    database.with_file_name(format!("{name}.fleet.{extension}"))
}

/// Replaces that file by `new`, which must be a valid database in the same folder or file system. Returns its number of measurements.
///
/// # Errors
///
/// If `new` cannot be read as a database, or not be moved; the current file then stays.
pub fn replace_fleet_file(database: &Path, new: &Path) -> Result<u64, MergeError> {
    let count = {
        let db = open_existing(new)?;
        let count = db.count(&Filter::default());
        check_reads(&db)?;
        count
    };
    let target = fleet_file(database);
    let unwritable =
        |error: std::io::Error| MergeError::Unwritable { path: target.clone(), message: error.to_string() };
    // The write-ahead log belongs to the replaced file; SQLite would apply it to the new one.
    for suffix in ["-wal", "-shm"] {
        let mut name = target.as_os_str().to_owned();
        name.push(suffix);
        match fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unwritable(error)),
            _ => {}
        }
    }
    fs::rename(new, &target).map_err(unwritable)?;
    Ok(count)
}
