//! Opens the file in any state: new, old, newer, damaged, read-only, foreign, or inaccessible.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{Backing, PerfDb, forked, raw};
use crate::migrations::{APPLICATION_ID, SCHEMA_VERSION, migrate, version};
use lz_core::fork;
use lz_core::reason::{Reason, ReasonCode};
use lz_files as files;

/// Options for opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long opening and reading wait for another process before continuing without the database. Short, because a call of an
    /// operation may be waiting; a busy database is retried later.
    pub busy_timeout: Duration,
    /// How long a write waits for another process before it is dropped. No operation waits for writes.
    pub write_timeout: Duration,
    /// Never write, not even to repair or migrate.
    pub read_only: bool,
    /// Maximum number of pages of the file (4 KiB each): a size limit, handled like a full disk.
    pub max_pages: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            busy_timeout: Duration::from_millis(50),
            write_timeout: Duration::from_secs(5),
            read_only: false,
            max_pages: None,
        }
    }
}

/// The result of opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenStatus {
    /// The file did not exist and was created.
    Created,
    /// The file is valid; `migrated_from` is its version if it was older.
    Ready {
        /// The version before migration, if it was older.
        migrated_from: Option<u32>,
    },
    /// The file was damaged: it was renamed, and a new one was created.
    Quarantined {
        /// The new path of the damaged file.
        kept_as: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file is readable but not writable.
    ReadOnly {
        /// Why it cannot be written.
        why: String,
    },
    /// No database is available: reads return nothing, writes are dropped.
    Closed(ClosedReason),
}

/// Why no database is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClosedReason {
    /// A newer LayerZero wrote the file; modifying it could lose data that this build does not understand.
    NewerSchema {
        /// The version in the file.
        found: u32,
        /// The newest version that this build supports.
        supported: u32,
    },
    /// An older file that must be migrated but is not writable.
    OlderSchema {
        /// The version in the file.
        found: u32,
        /// The required version.
        supported: u32,
    },
    /// A database of another program.
    ForeignDatabase {
        /// Its application id.
        application_id: i32,
    },
    /// Not a database file. It is not modified.
    NotADatabase {
        /// What was found.
        message: String,
    },
    /// Another process has locked the database. It is retried later.
    Busy,
    /// A damaged file that could not be renamed.
    Damaged {
        /// What is wrong, and why it could not be renamed.
        message: String,
    },
    /// The file cannot be opened or created.
    Unavailable {
        /// The system error.
        message: String,
    },
}

impl fmt::Display for ClosedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewerSchema { found, supported } => {
                write!(
                    f,
                    "written by a newer LayerZero: schema version {found}, this build supports {supported}"
                )
            }
            Self::OlderSchema { found, supported } => {
                write!(
                    f,
                    "schema version {found} is older than {supported}, and the file cannot be migrated because it is not writable"
                )
            }
            Self::ForeignDatabase { application_id } => {
                write!(
                    f,
                    "a database of another program (application id {application_id:#010x}), not modified: set another \
                     file in `perfdb.path`"
                )
            }
            Self::NotADatabase { message } => {
                write!(
                    f,
                    "not a performance database, not modified ({message}): set another file in `perfdb.path`"
                )
            }
            Self::Busy => f.write_str("locked by another process; it is retried later"),
            Self::Damaged { message } => write!(f, "damaged: {message}"),
            Self::Unavailable { message } => write!(f, "cannot be opened: {message}"),
        }
    }
}

impl std::error::Error for ClosedReason {}

impl From<&ClosedReason> for Reason {
    fn from(closed: &ClosedReason) -> Reason {
        match closed {
            ClosedReason::NewerSchema { found, supported } => Reason::new(ReasonCode::PerfdbVersionMismatch)
                .required(format!("schema version {supported} or earlier"))
                .found(found.to_string()),
            other => Reason::new(ReasonCode::PerfdbUnavailable).message(other.to_string()),
        }
    }
}

/// An opened database and the result of opening. The database is usable in every case.
#[derive(Debug)]
pub struct Opened {
    /// The database.
    pub db: PerfDb,
    /// The result of opening.
    pub status: OpenStatus,
}

impl PerfDb {
    /// Opens or creates the database at `path`. Never fails: see [`OpenStatus::Closed`].
    pub fn open(path: impl AsRef<Path>) -> Opened {
        PerfDb::open_with(path, Options::default())
    }

    /// Like [`PerfDb::open`], with options.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Opened {
        let path = path.as_ref().to_path_buf();
        let (backing, status) = match fork::DATABASE.enter() {
            Some(_in_use) => open_backing(&path, options),
            None => closed(forked()),
        };
        report(&path, &status, options);
        Opened { db: PerfDb::new(path, options, backing), status }
    }
}

fn report(path: &Path, status: &OpenStatus, options: Options) {
    let path = path.display();
    match status {
        OpenStatus::Created => tracing::debug!(target: "lz::perfdb", %path, "performance database created"),
        OpenStatus::Ready { migrated_from: Some(from) } => {
            tracing::info!(target: "lz::perfdb", %path, from, to = SCHEMA_VERSION, "performance database migrated");
        }
        OpenStatus::Ready { migrated_from: None } => {
            tracing::debug!(target: "lz::perfdb", %path, "performance database opened")
        }
        OpenStatus::Quarantined { kept_as, why } => {
            let kept_as = kept_as.display();
            tracing::warn!(target: "lz::perfdb", %path, %kept_as, %why, "performance database was damaged: renamed, and a new one created");
        }
        OpenStatus::ReadOnly { .. } if options.read_only => {
            tracing::debug!(target: "lz::perfdb", %path, "performance database opened for reading")
        }
        OpenStatus::ReadOnly { why } => {
            tracing::warn!(target: "lz::perfdb", %path, %why, "performance database is read-only")
        }
        OpenStatus::Closed(reason) => {
            tracing::warn!(target: "lz::perfdb", %path, %reason, "continuing without a performance database")
        }
    }
}

enum Failure {
    Damaged(String),
    NotWritable(String),
    Closed(ClosedReason),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let message = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Failure::Damaged(message),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Failure::Closed(ClosedReason::Busy),
            _ => Failure::NotWritable(message),
        }
    }
}

pub(super) fn open_backing(path: &Path, options: Options) -> (Backing, OpenStatus) {
    if let Err(reason) = check_recognizable(path) {
        return closed(reason);
    }
    if options.read_only {
        return read_only(path, options, "opened for reading only".to_owned());
    }
    if let Some(folder) = path.parent() {
        // If this fails, opening the file fails with a better message.
        let _ = fs::create_dir_all(folder);
    }
    // Only one process at a time checks, quarantines and migrates. The lock is released when its holder exits.
    let _guard = match opening_lock(path, options.busy_timeout) {
        Ok(guard) => guard,
        Err(reason) => return closed(reason),
    };
    let existed = fs::metadata(path).is_ok_and(|file| file.len() > 0);
    match undamaged(path, options) {
        Ok((connection, _)) if !existed => (Backing::Writable(connection), OpenStatus::Created),
        Ok((connection, found)) => {
            let migrated_from = (found < SCHEMA_VERSION).then_some(found);
            (Backing::Writable(connection), OpenStatus::Ready { migrated_from })
        }
        Err(Failure::Closed(reason)) => closed(reason),
        Err(Failure::NotWritable(why)) => read_only(path, options, why),
        Err(Failure::Damaged(why)) => quarantine_and_restart(path, options, why),
    }
}

/// The magic bytes of a SQLite file.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The length of the header.
const HEAD_BYTES: usize = 100;

/// Offset of the big-endian application id in the header.
const APPLICATION_ID_OFFSET: usize = 68;

/// Maximum file size: opening checks the whole file.
const MAX_BYTES: u64 = 1 << 30;

/// Whether the file may be opened as a database and, if damaged, be renamed: it is absent, empty, or has the SQLite magic. A setting
/// may name any file by mistake, and that file must not be modified. Does not block.
fn check_recognizable(path: &Path) -> Result<(), ClosedReason> {
    for suffix in ["", "-wal", "-shm", "-journal", ".lock"] {
        files::check_regular_or_absent(&with_suffix(path, suffix))
            .map_err(|error| ClosedReason::Unavailable { message: error.to_string() })?;
    }
    let mut head = [0; HEAD_BYTES];
    // Opening reports why it cannot be read, or creates it.
    let Ok(length @ 1..) = raw::read_head(path, &mut head) else { return Ok(()) };
    if !head.starts_with(MAGIC) {
        let message = "it does not have the header of a SQLite file".to_owned();
        return Err(ClosedReason::NotADatabase { message });
    }
    if length > MAX_BYTES {
        return Err(ClosedReason::Unavailable { message: format!("it is larger than {MAX_BYTES} bytes") });
    }
    Ok(())
}

/// The application id in the header; `None` if the file is too short.
fn header_application_id(path: &Path) -> Option<i32> {
    let mut head = [0; HEAD_BYTES];
    let length = raw::read_head(path, &mut head).ok()?;
    let head = head.get(..usize::try_from(length).map_or(HEAD_BYTES, |length| length.min(HEAD_BYTES)))?;
    let bytes = head.get(APPLICATION_ID_OFFSET..APPLICATION_ID_OFFSET + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

fn closed(reason: ClosedReason) -> (Backing, OpenStatus) {
    (Backing::Closed(reason.clone()), OpenStatus::Closed(reason))
}

fn quarantine_and_restart(path: &Path, options: Options, why: String) -> (Backing, OpenStatus) {
    // A damaged file of another program must not be renamed.
    if let Some(application_id) = header_application_id(path).filter(|id| *id != APPLICATION_ID) {
        return closed(ClosedReason::ForeignDatabase { application_id });
    }
    let kept_as = match quarantine(path) {
        Ok(kept_as) => kept_as,
        Err(error) => {
            return closed(ClosedReason::Damaged {
                message: format!("{why}; it cannot be renamed: {error}"),
            });
        }
    };
    match writable(path, options) {
        Ok((connection, _)) => (Backing::Writable(connection), OpenStatus::Quarantined { kept_as, why }),
        Err(Failure::Closed(reason)) => closed(reason),
        Err(Failure::NotWritable(message) | Failure::Damaged(message)) => {
            closed(ClosedReason::Unavailable { message })
        }
    }
}

/// As [`writable`]. A read that fails also looks like damage to SQLite, so it counts only if all of the file can be read before and after
/// a second attempt.
fn undamaged(path: &Path, options: Options) -> Result<(Connection, u32), Failure> {
    let result = writable(path, options);
    let Err(Failure::Damaged(why)) = result else { return result };
    let read_all = || {
        let unreadable =
            |error| Failure::Closed(ClosedReason::Unavailable { message: format!("{why}; {error}") });
        raw::read_all(path, &with_suffix(path, "-wal")).map_err(unreadable)
    };
    read_all()?;
    let again = writable(path, options);
    if matches!(again, Err(Failure::Damaged(_))) {
        read_all()?;
    }
    again
}

/// The smallest SQLite page, and so the smallest non-empty database file.
const MIN_FILE_BYTES: u64 = 512;

/// A writable, checked and migrated connection, and the schema version found.
fn writable(path: &Path, options: Options) -> Result<(Connection, u32), Failure> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if let Ok(length @ 1..MIN_FILE_BYTES) = fs::metadata(path).map(|file| file.len()) {
        // SQLite would treat it as an empty file and overwrite it.
        return Err(Failure::Damaged(format!("{length} bytes are too few for a database")));
    }
    let mut connection = Connection::open_with_flags(path, flags)?;
    if connection.is_readonly("main")? {
        // Without write permission SQLite silently opens read-only.
        return Err(Failure::NotWritable("no permission to write the file".to_owned()));
    }
    connection.busy_timeout(options.busy_timeout)?;
    // Closing must not delete the WAL by name: after a quarantine the name belongs to the new file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    check_application(&connection)?;
    check(&connection)?;
    // File systems without shared memory return another mode, which works with less concurrency.
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    // Safe in WAL mode; a power failure may lose the latest measurements, which is acceptable.
    connection.pragma_update(None, "synchronous", "normal")?;
    if let Some(pages) = options.max_pages {
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    let found = migrate(&mut connection)?;
    Ok((connection, found))
}

/// Rejects files of newer builds and of other programs before anything is written.
fn check_application(connection: &Connection) -> Result<u32, Failure> {
    let application_id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: u32 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application_id != APPLICATION_ID && (application_id != 0 || tables > 0) {
        return Err(Failure::Closed(ClosedReason::ForeignDatabase { application_id }));
    }
    let found = version(connection)?;
    if found > SCHEMA_VERSION {
        return Err(Failure::Closed(ClosedReason::NewerSchema { found, supported: SCHEMA_VERSION }));
    }
    Ok(found)
}

fn check(connection: &Connection) -> Result<(), Failure> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(Failure::Damaged(verdict)) }
}

fn read_only(path: &Path, options: Options, why: String) -> (Backing, OpenStatus) {
    let attempt = |target: &OsString, flags: OpenFlags| -> Result<Connection, Failure> {
        let connection = Connection::open_with_flags(target, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(options.busy_timeout)?;
        let found = check_application(&connection)?;
        check(&connection)?;
        if found < SCHEMA_VERSION {
            return Err(Failure::Closed(ClosedReason::OlderSchema { found, supported: SCHEMA_VERSION }));
        }
        Ok(connection)
    };
    if !path.is_file() {
        return closed(ClosedReason::Unavailable { message: why });
    }
    let plain = attempt(&path.as_os_str().to_owned(), OpenFlags::SQLITE_OPEN_READ_ONLY);
    let result = match plain {
        // Without shared memory the WAL cannot be read. The file alone is complete only if the WAL is empty.
        Err(Failure::NotWritable(_)) if log_is_empty(path) => {
            attempt(&immutable_address(path), OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)
        }
        other => other,
    };
    match result {
        Ok(connection) => (Backing::ReadOnly(connection), OpenStatus::ReadOnly { why }),
        Err(Failure::Closed(reason)) => closed(reason),
        Err(Failure::Damaged(message)) => closed(ClosedReason::Damaged { message }),
        Err(Failure::NotWritable(message)) => closed(ClosedReason::Unavailable { message }),
    }
}

fn log_is_empty(path: &Path) -> bool {
    fs::metadata(with_suffix(path, "-wal")).map_or(true, |file| file.len() == 0)
}

fn immutable_address(path: &Path) -> OsString {
    let mut address = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                address.push(*byte as char)
            }
            other => address.push_str(&format!("%{other:02x}")),
        }
    }
    address.push_str("?immutable=1");
    address.into()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Renames the file and its WAL to the first free `.corrupt-<n>` name. Processes that have them open keep using them.
fn quarantine(path: &Path) -> std::io::Result<PathBuf> {
    let kept_as = (1u32..=10_000)
        .map(|number| with_suffix(path, &format!(".corrupt-{number}")))
        .find(|candidate| !candidate.exists())
        .ok_or_else(|| std::io::Error::other("there are already 10000 damaged files"))?;
    fs::rename(path, &kept_as)?;
    for suffix in ["-wal", "-shm"] {
        match fs::rename(with_suffix(path, suffix), with_suffix(&kept_as, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(kept_as)
}

/// Waits for the lock file; continues without one if it cannot be created, as in a read-only directory.
fn opening_lock(path: &Path, timeout: Duration) -> Result<Option<File>, ClosedReason> {
    let lock = File::options().create(true).truncate(false).write(true).open(with_suffix(path, ".lock"));
    let Ok(file) = lock else { return Ok(None) };
    let deadline = Instant::now() + timeout;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(fs::TryLockError::WouldBlock) => return Err(ClosedReason::Busy),
            Err(_) => return Ok(None),
        }
    }
}
