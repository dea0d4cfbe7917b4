//! Merges the measurements of several databases, from any number of machines, into one.
//!
//! A merged row keeps its parts: the row of each origin. An origin has one part per key, of which the latest counts, and equal
//! parts of different origins (copies of one file) count once. Merging is therefore idempotent, independent of the order of files,
//! and a merged file can be merged again.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ToSql, Transaction, params_from_iter};
use sha2::{Digest, Sha256};

use super::measurements::{COLUMNS, KEY, evidence, key_values, row_values, upsert};
use super::{DropReason, Evidence, EvidenceKey, Filter, HealthRow, Mode, Options, PerfDb};

/// The parts of merged rows. Not a step of the migrations: only merged files have it, and other versions ignore it.
const CREATE_PARTS: &str = "CREATE TABLE IF NOT EXISTS merged_part (
    operation TEXT NOT NULL,
    device_uuid TEXT NOT NULL,
    bucket BLOB NOT NULL,
    kernel TEXT NOT NULL,
    kernel_version TEXT NOT NULL,
    driver TEXT NOT NULL,
    toolkit TEXT NOT NULL,
    torch TEXT NOT NULL,
    layerzero TEXT NOT NULL,
    dtypes TEXT NOT NULL,
    capabilities_hash TEXT NOT NULL,
    environment TEXT NOT NULL,
    median_ns REAL NOT NULL,
    p95_ns REAL NOT NULL,
    variance_ns2 REAL NOT NULL,
    samples INTEGER NOT NULL CHECK (samples > 0),
    warmup_ns REAL NOT NULL,
    measured_at INTEGER NOT NULL,
    expires_at INTEGER,
    valid INTEGER NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (operation, device_uuid, bucket, kernel, kernel_version, driver, toolkit, torch, layerzero,
                 dtypes, capabilities_hash, environment, origin)
) STRICT, WITHOUT ROWID;";

/// How long reading a file waits for processes that write it.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MergeReport {
    /// Measurements in the merged file.
    pub measurements: usize,
    /// Those with samples of several origins.
    pub combined: usize,
    /// Health rows in the merged files.
    pub health: usize,
}

/// Why nothing was merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeError {
    /// A file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        message: String,
    },
    /// The result cannot be written.
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why not.
        message: String,
    },
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, message } => {
                write!(f, "cannot read the measurements of {}: {message}", path.display())
            }
            Self::Unwritable { path, message } => {
                write!(f, "cannot write measurements to {}: {message}", path.display())
            }
        }
    }
}

impl std::error::Error for MergeError {}

/// Part of a merged row: the row of one origin.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    origin: String,
    evidence: Evidence,
}

type Parts = BTreeMap<EvidenceKey, Vec<Part>>;

/// Opens a database file for reading; an error if it cannot be read, unlike [`PerfDb::open`].
pub(super) fn open_existing(path: &Path) -> Result<PerfDb, MergeError> {
    let options = Options { read_only: true, busy_timeout: BUSY_TIMEOUT, ..Options::default() };
    let unreadable = |message: String| MergeError::Unreadable { path: path.to_owned(), message };
    fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    let db = PerfDb::open_with(path, options).db;
    match db.status().mode {
        Mode::Closed(reason) => Err(unreadable(reason.to_string())),
        _ => Ok(db),
    }
}

/// Whether every read of an opened file succeeded: reads return nothing if they fail.
pub(super) fn check_reads(db: &PerfDb) -> Result<(), MergeError> {
    match db.status().last_failure {
        Some(reason) => {
            Err(MergeError::Unreadable { path: db.path().to_owned(), message: reason.to_string() })
        }
        None => Ok(()),
    }
}

/// Merges files into `into`, which is created or, if it exists, also merged. All measurements and health rows are kept. A
/// device in `devices` (by uuid) gets the name given there: measurements of equal devices of several machines can then be used by all.
///
/// # Errors
///
/// If a file cannot be read or the result cannot be written; `into` is then unchanged.
pub fn merge(
    into: &Path,
    files: &[PathBuf],
    devices: &BTreeMap<String, String>,
) -> Result<MergeReport, MergeError> {
    let mut parts = Parts::new();
    let mut health = Vec::new();
    let existing = into.exists().then(|| into.to_owned());
    for path in existing.iter().chain(files.iter().filter(|path| Some(*path) != existing.as_ref())) {
        let db = open_existing(path)?;
        for mut part in read_parts(&db) {
            let device = &mut part.evidence.key.setting.device_uuid;
            if let Some(name) = devices.get(device).filter(|name| *name != device) {
                // Two devices of one machine that get the same name stay two origins.
                part.origin = format!("{}-{}", part.origin, digest(device, 4));
                device.clone_from(name);
            }
            add(parts.entry(part.evidence.key.clone()).or_default(), part);
        }
        health.extend(db.load_health(None));
        check_reads(&db)?;
    }
    write(into, &parts, &health)
        .map_err(|reason| MergeError::Unwritable { path: into.to_owned(), message: reason.to_string() })
}

fn write(into: &Path, parts: &Parts, health: &[HealthRow]) -> Result<MergeReport, DropReason> {
    let db = PerfDb::open_with(into, Options { busy_timeout: BUSY_TIMEOUT, ..Options::default() }).db;
    db.write(|transaction| {
        transaction.execute_batch(CREATE_PARTS)?;
        for parts in parts.values() {
            let Some(merged) = combined(parts) else { continue };
            upsert(transaction, &merged)?;
            let delete = format!("DELETE FROM merged_part WHERE {KEY}");
            transaction.prepare_cached(&delete)?.execute(params_from_iter(key_values(&merged.key)))?;
            parts.iter().try_for_each(|part| insert_part(transaction, part))?;
        }
        Ok(())
    })?;
    db.save_health(health)?;
    let combined = parts.values().filter(|parts| parts.len() > 1).count();
    Ok(MergeReport { measurements: parts.len(), combined, health: health.len() })
}

fn insert_part(transaction: &Transaction<'_>, part: &Part) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT INTO merged_part ({COLUMNS}, origin)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)"
    );
    let origin: Box<dyn ToSql + '_> = Box::new(&part.origin);
    let values = row_values(&part.evidence).chain(std::iter::once(origin));
    transaction.prepare_cached(&sql)?.execute(params_from_iter(values))?;
    Ok(())
}

/// Adds a part to those of its key.
fn add(parts: &mut Vec<Part>, part: Part) {
    let age = |part: &Part| (part.evidence.timing.measured_at, part.evidence.timing.samples);
    if let Some(known) = parts.iter_mut().find(|known| known.origin == part.origin) {
        if age(known) < age(&part) {
            *known = part;
        }
    } else if let Some(copy) = parts.iter_mut().find(|known| known.evidence == part.evidence) {
        // A copy of the same file at another path; the smaller name, so that the order of files does not matter.
        if part.origin < copy.origin {
            copy.origin = part.origin;
        }
    } else {
        parts.push(part);
    }
    parts.sort_by(|a, b| {
        (a.evidence.timing.measured_at, &a.origin).cmp(&(b.evidence.timing.measured_at, &b.origin))
    });
}

/// The statistics of all valid parts, or of all if none is valid. A part that had expired when a later one was measured does not count.
fn combined(parts: &[Part]) -> Option<Evidence> {
    let any_valid = parts.iter().any(|part| part.evidence.valid);
    let mut merged: Option<Evidence> = None;
    for Part { evidence, .. } in parts.iter().filter(|part| part.evidence.valid == any_valid) {
        let counts =
            |earlier: &Evidence| earlier.expires_at.is_none_or(|end| evidence.timing.measured_at < end);
        merged = Some(match merged.filter(counts) {
            Some(earlier) => Evidence { timing: earlier.timing.merged(&evidence.timing), ..evidence.clone() },
            None => evidence.clone(),
        });
    }
    merged
}

/// The rows of a file as parts. A row that was measured again since it was merged is one part of this file.
fn read_parts(db: &PerfDb) -> Vec<Part> {
    let origin = origin(db.path());
    let mut stored = Parts::new();
    for part in db.read(stored_parts) {
        stored.entry(part.evidence.key.clone()).or_default().push(part);
    }
    let mut all = Vec::new();
    for evidence in db.show(&Filter::default(), usize::MAX) {
        match stored.remove(&evidence.key).filter(|parts| combined(parts).as_ref() == Some(&evidence)) {
            Some(parts) => all.extend(parts),
            None => all.push(Part { origin: origin.clone(), evidence }),
        }
    }
    all
}

fn stored_parts(connection: &Connection) -> rusqlite::Result<Vec<Part>> {
    let exists = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'merged_part'";
    if connection.query_row(exists, [], |row| row.get::<_, u32>(0))? == 0 {
        return Ok(Vec::new());
    }
    let order = "ORDER BY measured_at, origin";
    let mut statement =
        connection.prepare_cached(&format!("SELECT {COLUMNS}, origin FROM merged_part {order}"))?;
    let rows = statement.query_map([], |row| {
        let origin: String = row.get(20)?;
        Ok(evidence(row)?.map(|evidence| Part { origin, evidence }))
    })?;
    rows.filter_map(Result::transpose).collect()
}

/// The identity of a file: of the machine and of the path, as a digest, so that neither is published.
fn origin(path: &Path) -> String {
    let machine = ["/etc/machine-id", "/proc/sys/kernel/hostname"];
    let machine = machine.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    digest(&format!("layerzero.perfdb origin\n{}\n{}", machine.trim(), path.display()), 16)
}

/// The first bytes of the SHA-256 of a text, in hexadecimal.
fn digest(text: &str, bytes: usize) -> String {
    Sha256::digest(text.as_bytes()).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}
