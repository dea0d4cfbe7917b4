//! The database handle: one connection behind a lock. Failures below are reported as values and never stop the caller.

mod open;
mod raw;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use crate::records::Rejection;
use lz_core::fork;
use open::open_backing;
pub use open::{ClosedReason, OpenStatus, Opened, Options};

/// Seconds since 1970; 0 on a machine whose clock is before that.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// Why a write was dropped. No action is required: drops are counted in [`Status`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DropReason {
    /// The file is read-only.
    ReadOnly,
    /// The disk is full or the size limit is reached. Later writes are tried.
    DiskFull,
    /// Another process held the lock for longer than the timeout.
    Busy,
    /// The file was found to be damaged; it has been renamed, and later writes go to a new one.
    Damaged {
        /// The SQLite error.
        message: String,
    },
    /// No database is available.
    Closed(ClosedReason),
    /// The record is invalid.
    Rejected(Rejection),
    /// Any other error.
    Failed {
        /// The SQLite error.
        message: String,
    },
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly => f.write_str("the performance database is read-only"),
            Self::DiskFull => f.write_str("no space left for the performance database"),
            Self::Busy => {
                f.write_str("timed out waiting for another process that has locked the performance database")
            }
            Self::Damaged { message } => write!(f, "the performance database is damaged: {message}"),
            Self::Closed(reason) => write!(f, "no performance database: {reason}"),
            Self::Rejected(rejection) => write!(f, "invalid record: {rejection}"),
            Self::Failed { message } => write!(f, "the performance database failed: {message}"),
        }
    }
}

impl std::error::Error for DropReason {}

impl From<Rejection> for DropReason {
    fn from(rejection: Rejection) -> Self {
        DropReason::Rejected(rejection)
    }
}

impl From<rusqlite::Error> for DropReason {
    fn from(error: rusqlite::Error) -> Self {
        let message = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => DropReason::ReadOnly,
            Some(ErrorCode::DiskFull) => DropReason::DiskFull,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DropReason::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => DropReason::Damaged { message },
            _ => DropReason::Failed { message },
        }
    }
}

/// What the database supports now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Reads and writes.
    Writable,
    /// Reads only.
    ReadOnly,
    /// Neither.
    Closed(ClosedReason),
}

/// The mode of the database and its failures so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The mode.
    pub mode: Mode,
    /// Dropped writes since it was opened.
    pub dropped_writes: u64,
    /// Failed reads, which returned nothing, since it was opened.
    pub failed_reads: u64,
    /// The reason of the latest failure.
    pub last_failure: Option<DropReason>,
    /// The latest damaged file that was renamed after opening.
    pub quarantined: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) enum Backing {
    Writable(Connection),
    ReadOnly(Connection),
    Closed(ClosedReason),
}

#[derive(Debug)]
struct Inner {
    backing: Backing,
    /// The process that opened it.
    process: u32,
    dropped_writes: u64,
    failed_reads: u64,
    last_failure: Option<DropReason>,
    quarantined: Option<PathBuf>,
    /// When a busy database is retried.
    retry_at: Instant,
}

impl Inner {
    fn new(backing: Backing) -> Inner {
        Inner {
            backing,
            process: std::process::id(),
            dropped_writes: 0,
            failed_reads: 0,
            last_failure: None,
            quarantined: None,
            retry_at: Instant::now() + RETRY_INTERVAL,
        }
    }
}

/// The locked state. The lock is released before a fork may proceed.
struct Access<'a> {
    inner: MutexGuard<'a, Inner>,
    _in_use: fork::Inside,
}

impl Deref for Access<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Access<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

/// Why a database is closed in a child that was forked while another thread accessed it.
pub(super) fn forked() -> ClosedReason {
    let message = "the process was forked while another thread accessed a performance database".to_owned();
    ClosedReason::Unavailable { message }
}

/// How often a busy database is retried by reads.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The performance database. Shared between threads; calls are serialized on one connection.
#[derive(Debug)]
pub struct PerfDb {
    path: PathBuf,
    options: Options,
    inner: Mutex<Inner>,
}

impl PerfDb {
    pub(super) fn new(path: PathBuf, options: Options, backing: Backing) -> PerfDb {
        PerfDb { path, options, inner: Mutex::new(Inner::new(backing)) }
    }

    /// A disabled database: reads return nothing, writes are dropped.
    pub fn disabled() -> PerfDb {
        let reason = ClosedReason::Unavailable { message: "disabled".to_owned() };
        PerfDb::new(PathBuf::new(), Options::default(), Backing::Closed(reason))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mode of the database and its failures so far.
    pub fn status(&self) -> Status {
        let Some(inner) = self.inner() else {
            return Status {
                mode: Mode::Closed(forked()),
                dropped_writes: 0,
                failed_reads: 0,
                last_failure: None,
                quarantined: None,
            };
        };
        Status {
            mode: match &inner.backing {
                Backing::Writable(_) => Mode::Writable,
                Backing::ReadOnly(_) => Mode::ReadOnly,
                Backing::Closed(reason) => Mode::Closed(reason.clone()),
            },
            dropped_writes: inner.dropped_writes,
            failed_reads: inner.failed_reads,
            last_failure: inner.last_failure.clone(),
            quarantined: inner.quarantined.clone(),
        }
    }

    /// The state, for the duration of one access; `None` if this process was forked while another thread accessed a database. A poisoned
    /// lock is safe to use: SQLite rolled the transaction back.
    fn inner(&self) -> Option<Access<'_>> {
        let in_use = fork::DATABASE.enter()?;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if inner.process != process {
            inner.process = process;
            if !matches!(inner.backing, Backing::Closed(_)) {
                let (own, _) = open_backing(&self.path, self.options);
                // In a forked child the connection must be neither used nor closed: closing would release the parent's locks.
                std::mem::forget(std::mem::replace(&mut inner.backing, own));
            }
        }
        Some(Access { inner, _in_use: in_use })
    }

    /// Reopens a database that was busy; returns whether it is still busy.
    pub fn retry(&self) -> bool {
        self.inner().is_some_and(|mut inner| self.reopen(&mut inner))
    }

    /// Whether it is closed because another process has locked it.
    pub fn is_busy(&self) -> bool {
        self.inner().is_some_and(|inner| matches!(inner.backing, Backing::Closed(ClosedReason::Busy)))
    }

    fn reopen(&self, inner: &mut Inner) -> bool {
        if matches!(inner.backing, Backing::Closed(ClosedReason::Busy)) {
            (inner.backing, _) = open_backing(&self.path, self.options);
            inner.retry_at = Instant::now() + RETRY_INTERVAL;
        }
        matches!(inner.backing, Backing::Closed(ClosedReason::Busy))
    }

    /// Runs a query. Returns the default if the database is closed; also if the query fails, which is counted.
    pub(super) fn read<T: Default>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> T {
        let Some(mut inner) = self.inner() else { return T::default() };
        if Instant::now() >= inner.retry_at {
            self.reopen(&mut inner);
        }
        let result = match &inner.backing {
            Backing::Writable(connection) | Backing::ReadOnly(connection) => query(connection),
            Backing::Closed(_) => return T::default(),
        };
        result.unwrap_or_else(|error| {
            inner.failed_reads += 1;
            let reason = DropReason::from(error);
            if reason == DropReason::Busy {
                // Later reads must not wait as well.
                inner.backing = Backing::Closed(ClosedReason::Busy);
                inner.retry_at = Instant::now() + RETRY_INTERVAL;
            }
            self.note(&mut inner, reason);
            T::default()
        })
    }

    /// Runs a change in a transaction that takes the write lock first, so that read-modify-write is atomic across processes. Does not
    /// hold the handle's lock while waiting for other processes.
    pub(super) fn write<T>(
        &self,
        change: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, DropReason> {
        let deadline = Instant::now() + self.options.write_timeout.max(self.options.busy_timeout);
        loop {
            let Some(mut inner) = self.inner() else { return Err(DropReason::Closed(forked())) };
            self.reopen(&mut inner);
            let result = attempt(&mut inner.backing, &change);
            let busy = matches!(result, Err(DropReason::Busy | DropReason::Closed(ClosedReason::Busy)));
            if busy && Instant::now() < deadline {
                drop(inner);
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            if let Err(reason) = &result {
                inner.dropped_writes += 1;
                self.note(&mut inner, reason.clone());
            }
            return result;
        }
    }

    /// Counts a record that was rejected before it reached the database.
    pub(super) fn refuse(&self, rejection: Rejection) -> DropReason {
        let reason = DropReason::from(rejection);
        if let Some(mut inner) = self.inner() {
            inner.dropped_writes += 1;
            self.note(&mut inner, reason.clone());
        }
        reason
    }

    /// Stores a failure, logs it once per kind, and reopens if the file is damaged.
    fn note(&self, inner: &mut Inner, reason: DropReason) {
        let path = self.path.display();
        let expected =
            matches!(reason, DropReason::Closed(_)) && reason != DropReason::Closed(ClosedReason::Busy);
        if inner.last_failure.as_ref() != Some(&reason) && !expected {
            tracing::warn!(target: "lz::perfdb", %path, %reason, "performance database call failed; continuing without it");
        }
        if matches!(reason, DropReason::Damaged { .. }) {
            // The connection must be closed before the file is renamed.
            inner.backing = Backing::Closed(ClosedReason::Damaged { message: reason.to_string() });
            let (backing, status) = open_backing(&self.path, self.options);
            if let OpenStatus::Quarantined { kept_as, why } = status {
                let kept = kept_as.display();
                tracing::warn!(target: "lz::perfdb", %path, kept_as = %kept, %why, "performance database was damaged: renamed, and a new one created");
                inner.quarantined = Some(kept_as);
            }
            inner.backing = backing;
        }
        inner.last_failure = Some(reason);
    }
}

/// One attempt of a change.
fn attempt<T>(
    backing: &mut Backing,
    change: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
) -> Result<T, DropReason> {
    match backing {
        Backing::Writable(connection) => {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        }
        Backing::ReadOnly(_) => Err(DropReason::ReadOnly),
        Backing::Closed(reason) => Err(DropReason::Closed(reason.clone())),
    }
}

impl Drop for PerfDb {
    /// Checkpoints the WAL, so that a copy of the file alone is complete. Best effort: other processes may be reading.
    fn drop(&mut self) {
        let Some(mut inner) = self.inner() else {
            // As in `inner`, the connection must not be closed.
            let closed = Mutex::new(Inner::new(Backing::Closed(forked())));
            std::mem::forget(std::mem::replace(&mut self.inner, closed));
            return;
        };
        if let Backing::Writable(connection) = &inner.backing {
            let _ = connection.busy_timeout(Duration::ZERO);
            let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
        // Closed here, where a fork waits for it.
        inner.backing = Backing::Closed(ClosedReason::Unavailable { message: "closed".to_owned() });
    }
}
