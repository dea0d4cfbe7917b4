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
    read_at(&open(path)?, to, 0)?;
    Ok(fs::metadata(path)?.len())
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

fn read_at(connection: &Connection, to: &mut [u8], at: u64) -> io::Result<()> {
    let (Ok(length), Ok(at)) = (i32::try_from(to.len()), i64::try_from(at)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
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
    let read =
        unsafe { file.as_ref().and_then(|file| file.pMethods.as_ref()).and_then(|methods| methods.xRead) };
    let Some(read) = read.filter(|_| found == ffi::SQLITE_OK) else {
        return Err(io::Error::other("SQLite has not opened the file"));
    };
    // SAFETY: `to` has room for `length` bytes.
    match unsafe { read(file, to.as_mut_ptr().cast(), length, at) } {
        ffi::SQLITE_OK | ffi::SQLITE_IOERR_SHORT_READ => Ok(()),
        code => Err(io::Error::other(format!("cannot read {length} bytes at {at}: SQLite error {code}"))),
    }
}
