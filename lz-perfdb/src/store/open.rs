//! Opening the file, whatever state it is in: new, old, newer, damaged, read-only, somebody else's, or not openable at all.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{Backing, PerfDb};
use crate::migrations::{APPLICATION_ID, SCHEMA_VERSION, migrate, version};
use lz_core::reason::{Reason, ReasonCode};
use lz_files as files;
use lz_files::RegularFile;

/// How to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long opening and reading wait for another process before they go on without the database. A call of an operation
    /// may stand behind them, so that this is short; a database that was busy is tried again later.
    pub busy_timeout: Duration,
    /// How long a write waits for another process before it is dropped. No call of an operation waits for one.
    pub write_timeout: Duration,
    /// Never write, not even to repair or migrate: for inspection.
    pub read_only: bool,
    /// The most pages the file may have (4 KiB each): a growth limit, enforced like a full disk.
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

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenStatus {
    /// There was no file; one was made.
    Created,
    /// The file is good; `migrated_from` names its version when it was an older one.
    Ready {
        /// The version before migration, when there was one.
        migrated_from: Option<u32>,
    },
    /// The file was damaged: it is kept under another name, and a new one was started.
    Quarantined {
        /// Where the damaged file is now.
        kept_as: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file can be read and not be written.
    ReadOnly {
        /// Why it cannot be written.
        why: String,
    },
    /// There is no database: reads answer nothing, writes are dropped.
    Closed(ClosedReason),
}

/// Why there is no database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClosedReason {
    /// A newer LayerZero wrote the file; touching it could lose what this build does not understand.
    NewerSchema {
        /// The version in the file.
        found: u32,
        /// The newest that this build knows.
        supported: u32,
    },
    /// An older file that would have to be migrated, and cannot be written.
    OlderSchema {
        /// The version in the file.
        found: u32,
        /// The version that is needed.
        supported: u32,
    },
    /// A database of another program.
    ForeignDatabase {
        /// The mark in its header.
        application_id: i32,
    },
    /// A file that is no database at all: it is left as it is.
    NotADatabase {
        /// What it is instead.
        message: String,
    },
    /// Another process holds the database. It is tried again later.
    Busy,
    /// A damaged file that could not be moved away.
    Damaged {
        /// What is wrong with it, and why it could not be moved.
        message: String,
    },
    /// The file cannot be opened or made.
    Unavailable {
        /// What the system said.
        message: String,
    },
}

impl fmt::Display for ClosedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewerSchema { found, supported } => {
                write!(
                    f,
                    "written by a newer LayerZero: schema version {found}, this build knows {supported}"
                )
            }
            Self::OlderSchema { found, supported } => {
                write!(
                    f,
                    "schema version {found} is older than {supported}, and the file cannot be migrated in place"
                )
            }
            Self::ForeignDatabase { application_id } => {
                write!(
                    f,
                    "a database of another program (application id {application_id:#010x}) and left as it is: name another \
                     file in `perfdb.path`"
                )
            }
            Self::NotADatabase { message } => {
                write!(
                    f,
                    "not a performance database and left as it is ({message}): name another file in `perfdb.path`"
                )
            }
            Self::Busy => f.write_str("another process holds it; it is tried again later"),
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

/// An opened database and what opening found. The database is usable in every case.
#[derive(Debug)]
pub struct Opened {
    /// The database.
    pub db: PerfDb,
    /// What opening found.
    pub status: OpenStatus,
}

impl PerfDb {
    /// Opens or makes the database at `path`. This cannot fail: see [`OpenStatus::Closed`].
    pub fn open(path: impl AsRef<Path>) -> Opened {
        PerfDb::open_with(path, Options::default())
    }

    /// As [`PerfDb::open`], with options.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Opened {
        let path = path.as_ref().to_path_buf();
        let (backing, status) = open_backing(&path, options);
        report(&path, &status);
        Opened { db: PerfDb::new(path, options, backing), status }
    }
}

fn report(path: &Path, status: &OpenStatus) {
    let path = path.display();
    match status {
        OpenStatus::Created => tracing::debug!(%path, "performance database created"),
        OpenStatus::Ready { migrated_from: Some(from) } => {
            tracing::info!(%path, from, to = SCHEMA_VERSION, "performance database migrated");
        }
        OpenStatus::Ready { migrated_from: None } => tracing::debug!(%path, "performance database opened"),
        OpenStatus::Quarantined { kept_as, why } => {
            let kept_as = kept_as.display();
            tracing::warn!(%path, %kept_as, %why, "performance database was damaged: kept aside, a new one started");
        }
        OpenStatus::ReadOnly { why } => tracing::warn!(%path, %why, "performance database is read-only"),
        OpenStatus::Closed(reason) => {
            tracing::warn!(%path, %reason, "selecting without a performance database")
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
    if let Err(reason) = recognized(path) {
        return closed(reason);
    }
    if options.read_only {
        return read_only(path, options, "opened for reading only".to_owned());
    }
    if let Some(folder) = path.parent() {
        // A failure here shows again, with a better message, when the file itself is opened.
        let _ = fs::create_dir_all(folder);
    }
    // One process at a time decides whether the file is damaged, moves it and migrates. The lock dies with its holder.
    let _guard = match opening_lock(path, options.busy_timeout) {
        Ok(guard) => guard,
        Err(reason) => return closed(reason),
    };
    let existed = fs::metadata(path).is_ok_and(|file| file.len() > 0);
    match writable(path, options) {
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

/// What every SQLite file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Where the application id lies in such a file, big-endian.
const APPLICATION_ID_AT: usize = 68;

/// The most bytes of the file: opening checks all of it.
const MAX_BYTES: u64 = 1 << 30;

/// Whether the file may be opened as a database and, if damaged, be set aside: it is absent, empty, or says of itself that it
/// is a SQLite file. A setting may name any file by mistake, and that file must stay as it is. Nothing here waits.
fn recognized(path: &Path) -> Result<(), ClosedReason> {
    for suffix in ["", "-wal", "-shm", "-journal", ".lock"] {
        files::check_regular_or_absent(&beside(path, suffix))
            .map_err(|error| ClosedReason::Unavailable { message: error.to_string() })?;
    }
    let mut file = match RegularFile::open(path) {
        Ok(file) => file.into_file(),
        // Opening says what keeps it from being read, or makes a new file.
        Err(_) => return Ok(()),
    };
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let mut head = Vec::new();
    let read = file.by_ref().take(100).read_to_end(&mut head);
    if read.is_err() || head.is_empty() {
        return Ok(());
    }
    if !head.starts_with(MAGIC) {
        let message = "it does not begin as a SQLite file does".to_owned();
        return Err(ClosedReason::NotADatabase { message });
    }
    if length > MAX_BYTES {
        return Err(ClosedReason::Unavailable { message: format!("it has more than {MAX_BYTES} bytes") });
    }
    Ok(())
}

/// The application id in the file's header; `None` where the file is too short to have one.
fn stated_application_id(path: &Path) -> Option<i32> {
    let file = RegularFile::open(path).ok()?.into_file();
    let mut head = Vec::new();
    file.take(100).read_to_end(&mut head).ok()?;
    let bytes = head.get(APPLICATION_ID_AT..APPLICATION_ID_AT + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

fn closed(reason: ClosedReason) -> (Backing, OpenStatus) {
    (Backing::Closed(reason.clone()), OpenStatus::Closed(reason))
}

fn quarantine_and_restart(path: &Path, options: Options, why: String) -> (Backing, OpenStatus) {
    // Damaged, and somebody else's: nothing of it is ours to move.
    if let Some(application_id) = stated_application_id(path).filter(|id| *id != APPLICATION_ID) {
        return closed(ClosedReason::ForeignDatabase { application_id });
    }
    let kept_as = match quarantine(path) {
        Ok(kept_as) => kept_as,
        Err(error) => {
            return closed(ClosedReason::Damaged { message: format!("{why}; it cannot be moved: {error}") });
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

/// The smallest page of SQLite, in bytes, and so the smallest file that is not empty.
const SMALLEST_FILE: u64 = 512;

/// A writable, checked and migrated connection, and the schema version that was found.
fn writable(path: &Path, options: Options) -> Result<(Connection, u32), Failure> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if let Ok(length @ 1..SMALLEST_FILE) = fs::metadata(path).map(|file| file.len()) {
        // SQLite would take it for an empty file and write over it.
        return Err(Failure::Damaged(format!("{length} bytes are no database")));
    }
    let mut connection = Connection::open_with_flags(path, flags)?;
    if connection.is_readonly("main")? {
        // Without the permission to write, SQLite opens for reading and does not say so.
        return Err(Failure::NotWritable("there is no permission to write the file".to_owned()));
    }
    connection.busy_timeout(options.busy_timeout)?;
    // Closing must not delete the log by name: after a quarantine the name belongs to the new file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    admissible(&connection)?;
    check(&connection)?;
    // File systems without shared memory answer with another mode, which works too, only with less concurrency.
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    // In WAL mode this never damages the file; a power cut may lose the last measurements, which is no loss.
    connection.pragma_update(None, "synchronous", "normal")?;
    if let Some(pages) = options.max_pages {
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    let found = migrate(&mut connection)?;
    Ok((connection, found))
}

/// Refuses files of newer builds and of other programs before anything is written.
fn admissible(connection: &Connection) -> Result<u32, Failure> {
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
        let found = admissible(&connection)?;
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
        // Without shared memory a log cannot be read. The file alone is whole only when the log is empty.
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
    fs::metadata(beside(path, "-wal")).map_or(true, |file| file.len() == 0)
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

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Moves the file and its log to the first free `.corrupt-<n>` name. A process that still has them open keeps its own files.
fn quarantine(path: &Path) -> std::io::Result<PathBuf> {
    let kept_as = (1u32..=10_000)
        .map(|number| beside(path, &format!(".corrupt-{number}")))
        .find(|candidate| !candidate.exists())
        .ok_or_else(|| std::io::Error::other("ten thousand damaged files are kept already"))?;
    fs::rename(path, &kept_as)?;
    for suffix in ["-wal", "-shm"] {
        match fs::rename(beside(path, suffix), beside(&kept_as, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(kept_as)
}

/// Waits a while for the lock beside the file; without one where none can be made, as in a folder that is only read.
fn opening_lock(path: &Path, patience: Duration) -> Result<Option<File>, ClosedReason> {
    let lock = File::options().create(true).truncate(false).write(true).open(beside(path, ".lock"));
    let Ok(file) = lock else { return Ok(None) };
    let deadline = Instant::now() + patience;
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
