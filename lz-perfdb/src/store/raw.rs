//! Reads the bytes of a database file through SQLite. A descriptor of our own must not be used: closing it would release the locks of
//! every connection of this process to the same file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use rusqlite::{Connection, OpenFlags, ffi};

/// The size of one read, as SQLite reads pages: a read that fails sometimes is then noticed.
const READ_BYTES: usize = 4096;

/// Fills `to` from the beginning of the file; bytes after its end are zero. Returns the length of the file.
pub fn read_head(path: &Path, to: &mut [u8]) -> io::Result<u64> {
    head_of(&open(path)?, to)
}

/// Length and bytes are those of the opened file: another process may replace the file at this path by one that it creates. The length is
/// read first, because a file that is being created is empty or has its first page.
fn head_of(connection: &Connection, to: &mut [u8]) -> io::Result<u64> {
    let length = length(connection)?;
    read_at(connection, to, 0)?;
    // SQLite reports a file of one byte as empty.
    Ok(if length == 0 && to[0] != 0 { 1 } else { length })
}

/// Reads all of the file and of its WAL: fails if any of it cannot be read now.
pub fn read_all(path: &Path, log: &Path) -> io::Result<()> {
    let connection = open(path)?;
    let mut page = [0; READ_BYTES];
    for at in (0..fs::metadata(path)?.len()).step_by(READ_BYTES) {
        read_at(&connection, &mut page, at)?;
    }
    // SQLite takes no lock on the WAL itself.
    let mut log = match File::open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    while log.read(&mut page)? > 0 {}
    Ok(())
}

fn open(path: &Path) -> io::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).map_err(io::Error::other)
}

/// The file of a connection, and its methods.
fn opened(connection: &Connection) -> io::Result<(*mut ffi::sqlite3_file, &ffi::sqlite3_io_methods)> {
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is open, and the call stores a pointer to a file that lives as long as it.
    let found = unsafe {
        let to_file = (&raw mut file).cast();
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_FILE_POINTER,
            to_file,
        )
    };
    // SAFETY: a file that SQLite has opened has methods, and they live as long as it.
    let methods = unsafe { file.as_ref().and_then(|file| file.pMethods.as_ref()) };
    match methods.filter(|_| found == ffi::SQLITE_OK) {
        Some(methods) => Ok((file, methods)),
        None => Err(io::Error::other("SQLite has not opened the file")),
    }
}

fn length(connection: &Connection) -> io::Result<u64> {
    let (file, methods) = opened(connection)?;
    let size_of = methods.xFileSize.ok_or(io::ErrorKind::Unsupported)?;
    let mut bytes = 0;
    // SAFETY: the call stores the size of an open file.
    match unsafe { size_of(file, &raw mut bytes) } {
        ffi::SQLITE_OK => Ok(bytes.max(0) as u64),
        code => Err(io::Error::other(format!("cannot read the size of the file: SQLite error {code}"))),
    }
}

fn read_at(connection: &Connection, to: &mut [u8], at: u64) -> io::Result<()> {
    let (Ok(length), Ok(at)) = (i32::try_from(to.len()), i64::try_from(at)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (file, methods) = opened(connection)?;
    let read = methods.xRead.ok_or(io::ErrorKind::Unsupported)?;
    // SAFETY: `to` has room for `length` bytes.
    match unsafe { read(file, to.as_mut_ptr().cast(), length, at) } {
        ffi::SQLITE_OK | ffi::SQLITE_IOERR_SHORT_READ => Ok(()),
        code => Err(io::Error::other(format!("cannot read {length} bytes at {at}: SQLite error {code}"))),
    }
}

#[cfg(test)]
mod tests {
    use lz_test_support::Folder;

    use super::*;

    #[test]
    fn length_and_bytes_are_those_of_one_file() {
        let folder = Folder::new();
        let [path, other] = ["opened", "other"].map(|name| folder.path().join(name));
        fs::write(&path, "").unwrap();
        fs::write(&other, [7; READ_BYTES]).unwrap();
        let connection = open(&path).unwrap();
        fs::rename(&other, &path).unwrap();
        let mut head = [1; 16];
        assert_eq!(head_of(&connection, &mut head).unwrap(), 0);
        assert_eq!(head, [0; 16]);
        assert_eq!(read_head(&path, &mut head).unwrap(), READ_BYTES as u64);
        assert_eq!(head, [7; 16]);
    }
}
