//! The list of running servers: one file per server in a folder that only the user can read.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::probe;

const MAX_FILE_BYTES: u64 = 64 << 10;

/// A running server of this user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The program and its script.
    pub program: String,
    /// When it was registered, in seconds since 1970.
    pub since: u64,
    /// The URL with the token.
    pub url: String,
}

/// The file of one server; removed when dropped.
#[derive(Debug)]
pub struct Registration {
    file: PathBuf,
}

impl Registration {
    /// Registers a URL.
    pub fn write(url: &str) -> io::Result<Registration> {
        Registration::write_in(&folder(), url)
    }

    fn write_in(folder: &Path, url: &str) -> io::Result<Registration> {
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => check_private(folder)?,
        }
        let process = Process {
            pid: std::process::id(),
            program: program(),
            since: lz_perfdb::unix_now(),
            url: url.to_owned(),
        };
        let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let file = folder.join(format!("{}-{port}.json", process.pid));
        let mut opened =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file)?;
        opened.write_all(serde_json::to_string(&process)?.as_bytes())?;
        Ok(Registration { file })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A file that remains is removed by the next process that lists them.
        fs::remove_file(&self.file).ok();
    }
}

/// The running servers of this user, oldest first. Files of servers that have ended are removed.
pub fn processes() -> Vec<Process> {
    processes_in(&folder())
}

fn processes_in(folder: &Path) -> Vec<Process> {
    if check_private(folder).is_err() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let text = lz_files::read_text(&path, MAX_FILE_BYTES).ok();
        let process = text.and_then(|text| serde_json::from_str::<Process>(&text).ok());
        let answer = process.as_ref().map(|process| probe::get(&process.url, "healthz"));
        match (process, answer) {
            (Some(process), Some(Ok(_))) => found.push(process),
            (Some(_), Some(Err(error))) if !probe::has_ended(&error) => {}
            _ => drop(fs::remove_file(&path)),
        }
    }
    found.sort_by_key(|process| (process.since, process.pid));
    found
}

/// The folder of the files: in the user's runtime folder, or where there is none, in the folder for temporary files.
fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(runtime) => PathBuf::from(runtime).join("layerzero"),
        None => std::env::temp_dir().join(format!("layerzero-{}", lz_files::user())),
    }
}

/// Fails unless the folder is a directory that belongs to this user and that nobody else can read or write.
fn check_private(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    let private = metadata.is_dir() && metadata.uid() == lz_files::user() && metadata.mode() & 0o077 == 0;
    if private {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} must be a directory of this user with mode 700", folder.display()),
    ))
}

/// The program and its script, without other arguments, which may contain secrets.
pub fn program() -> String {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let name = words.next().unwrap_or_default();
    let script = words.next().filter(|word| !word.starts_with('-'));
    let short = |path: String| path.rsplit('/').next().unwrap_or_default().to_owned();
    [Some(name), script].into_iter().flatten().map(short).collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use lz_test_support::Folder;

    use super::*;

    #[test]
    fn files_are_private_and_removed() {
        let temporary = Folder::new();
        let folder = temporary.file("layerzero");
        let registration = Registration::write_in(&folder, "http://127.0.0.1:1/secret/").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&registration.file)), (0o700, 0o600));
        drop(registration);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn servers_that_have_ended_are_removed() {
        let temporary = Folder::new();
        let folder = temporary.file("layerzero");
        let registration = Registration::write_in(&folder, "http://127.0.0.1:1/secret/").unwrap();
        assert_eq!(processes_in(&folder), []);
        assert!(!registration.file.exists());
    }

    #[test]
    fn readable_folder_is_rejected() {
        let temporary = Folder::new();
        let folder = temporary.path();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Registration::write_in(folder, "http://127.0.0.1:1/secret/").is_err());
        assert_eq!(processes_in(folder), []);
    }
}
