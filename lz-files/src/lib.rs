//! Files from outside: policies, tables, lockfiles, manifests, plugins. All of them are read through this module.
//!
//! Only regular files are read, and only up to a limit: a pipe would block forever, a device never ends. A file may only name
//! programs if no other user could have written it ([`RegularFile::check_trust`]).

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

mod mapped;

pub use mapped::MappedFile;

/// Size limit of a policy, a schema or a plugin manifest.
pub const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Size limit of a dispatch table, a lockfile or a shape manifest.
pub const MAX_TABLE_BYTES: u64 = 16 << 20;

/// Size limit of exported measurements.
pub const MAX_EXPORT_BYTES: u64 = 256 << 20;

/// Mode bits that allow the group or others to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The sticky bit: only owners may rename and remove entries of the directory.
const STICKY: u32 = 0o1000;

/// An open regular file: what is checked is what is read, even if its path changes meanwhile.
#[derive(Debug)]
pub struct RegularFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
}

impl RegularFile {
    /// Opens a file; directories, pipes, sockets and devices are rejected.
    pub fn open(path: &Path) -> io::Result<RegularFile> {
        // Without O_NONBLOCK opening a pipe waits for a writer; regular files ignore it.
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(not_regular(path));
        }
        Ok(RegularFile { path: path.to_owned(), file, metadata })
    }

    /// Its whole content, up to `limit` bytes.
    pub fn bytes(&mut self, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if self.metadata.len() <= limit {
            // It may have grown since, or report no length, as files in /proc do.
            (&self.file).take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        }
        if self.metadata.len() > limit || bytes.len() as u64 > limit {
            let message = format!("{} is larger than {limit} bytes", self.path.display());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(bytes)
    }

    /// Its whole content as text, up to `limit` bytes.
    pub fn text(&mut self, limit: u64) -> io::Result<String> {
        String::from_utf8(self.bytes(limit)?).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let message = format!("{} is not valid UTF-8 (byte {at})", self.path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }

    /// Whether only this user or root could have written the file or its path.
    pub fn check_trust(&self) -> Result<(), Untrusted> {
        check(&self.path, &self.metadata)?;
        check_folders(&self.path)
    }

    /// The open file.
    pub fn into_file(self) -> File {
        self.file
    }
}

/// Reads a regular text file of at most `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    RegularFile::open(path)?.text(limit)
}

/// Whether a path is free or names a regular file, without opening it.
pub fn check_regular_or_absent(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(not_regular(path)),
        _ => Ok(()),
    }
}

fn not_regular(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a regular file", path.display()))
}

/// Why a file is not trusted, with the command that fixes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untrusted {
    /// The file or directory.
    pub path: PathBuf,
    message: String,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Untrusted {}

/// The effective user id.
pub fn user() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() }
}

/// Whether the owner is this user or root, and neither group nor others may write.
pub fn check(path: &Path, metadata: &Metadata) -> Result<(), Untrusted> {
    let untrusted = |message: String| Untrusted { path: path.to_owned(), message };
    let shown = path.display();
    if metadata.uid() != 0 && metadata.uid() != user() {
        return Err(untrusted(format!(
            "{shown} belongs to user {}, not to root or user {}: run `chown {} {shown}` if you trust its content",
            metadata.uid(),
            user(),
            user()
        )));
    }
    if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(untrusted(format!(
            "{shown} is writable by its group or by others (mode {:o}): run `chmod go-w {shown}`",
            metadata.mode() & 0o7777
        )));
    }
    Ok(())
}

/// Whether no other user can replace the file at a path: neither a symlink nor a directory above it is under their control. In a
/// sticky directory (`/tmp`) only owners rename and remove, so the owner of the entry decides.
fn check_folders(path: &Path) -> Result<(), Untrusted> {
    let unreadable = |path: &Path, error: io::Error| Untrusted {
        path: path.to_owned(),
        message: format!("{} cannot be looked up: {error}", path.display()),
    };
    let link = fs::symlink_metadata(path).map_err(|error| unreadable(path, error))?;
    if link.is_symlink() && link.uid() != 0 && link.uid() != user() {
        let message = format!("the link {} belongs to user {}", path.display(), link.uid());
        return Err(Untrusted { path: path.to_owned(), message });
    }
    let absolute = std::path::absolute(path).map_err(|error| unreadable(path, error))?;
    let real = fs::canonicalize(path).map_err(|error| unreadable(path, error))?;
    for folder in real.ancestors().skip(1).chain(absolute.parent()) {
        let metadata = fs::metadata(folder).map_err(|error| unreadable(folder, error))?;
        if metadata.mode() & STICKY == 0 || metadata.uid() != 0 && metadata.uid() != user() {
            check(folder, &metadata)?;
        }
    }
    Ok(())
}

/// Finds a program by path, or by name in these directories, and checks that only this user or root could have written it.
pub fn trusted_program<'a>(
    program: &Path,
    folders: impl IntoIterator<Item = &'a OsStr>,
) -> Result<PathBuf, Untrusted> {
    let missing = |message: String| Untrusted { path: program.to_owned(), message };
    let path = if program.components().count() > 1 {
        program.to_owned()
    } else {
        // An empty or relative entry of PATH is the working directory, from which nothing is run.
        let mut found = folders.into_iter().map(|folder| Path::new(folder).join(program));
        found.find(|path| path.is_absolute() && path.is_file()).ok_or_else(|| {
            missing(format!("no program `{}` next to this executable or in PATH", program.display()))
        })?
    };
    let metadata = fs::metadata(&path)
        .map_err(|error| missing(format!("{} cannot be looked up: {error}", path.display())))?;
    if !metadata.is_file() {
        return Err(missing(format!("{} is not a regular file", path.display())));
    }
    check(&path, &metadata)?;
    check_folders(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use lz_test_support::Folder;

    use super::*;

    fn file(folder: &Folder, name: &str, mode: u32) -> PathBuf {
        let path = folder.write(name, "text");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        path
    }

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let folder = Folder::new();
        let path = file(&folder, "a", 0o644);
        assert_eq!(read_text(&path, 4).expect("it fits"), "text");
        assert_eq!(read_text(&path, 3).expect_err("it does not").kind(), io::ErrorKind::FileTooLarge);
        for other in [folder.path(), Path::new("/dev/zero")] {
            let error = read_text(other, 4).expect_err("not a file");
            assert!(error.to_string().contains("is not a regular file"), "{error}");
        }
        fs::write(&path, [b'a', 0xff]).expect("it can be written");
        assert!(read_text(&path, 4).expect_err("not UTF-8").to_string().contains("(byte 1)"));
    }

    #[test]
    fn files_writable_by_others_are_not_trusted() {
        let folder = Folder::new();
        let trust = |path: &Path| RegularFile::open(path).expect("it is there").check_trust();
        let path = file(&folder, "a", 0o644);
        assert_eq!(trust(&path), Ok(()));
        for mode in [0o664, 0o646] {
            let error = trust(&file(&folder, "a", mode)).expect_err("others can write it");
            assert_eq!(
                error.to_string().rsplit_once(": run ").map(|(_, fix)| fix.to_owned()),
                Some(format!("`chmod go-w {}`", path.display()))
            );
        }
        let path = file(&folder, "a", 0o644);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert_eq!(trust(&path).expect_err("others can replace it").path, folder.path());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).expect("it is ours");
        assert_eq!(trust(&path), Ok(()), "in a sticky directory no other user can replace it");
    }

    #[test]
    fn programs_are_never_run_from_the_working_directory() {
        let error = trusted_program(Path::new("Cargo.toml"), [OsStr::new(""), OsStr::new(".")]);
        assert!(error.expect_err("it is only here").to_string().contains("no program `Cargo.toml`"));
    }
}
