//! Export and import of the database as JSON lines, for another machine or for review.
//!
//! The first line is a header; every other line is one row. Import is idempotent: of two versions of a row the later measurement
//! is kept, so reading a file twice has no effect.

use std::fmt;
use std::io::{BufRead, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::measurements::{find, upsert};
use lz_files::{MAX_EXPORT_BYTES, RegularFile};

use super::{DropReason, Evidence, Filter, HealthRow, Measurement, PerfDb};

/// The name of the format, in the first line.
pub const EXCHANGE_FORMAT: &str = "layerzero.perfdb";

/// The version of the format, in the first line.
pub const EXCHANGE_VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Header { format: String, version: u32 },
    Measurement(Box<Evidence>),
    Health(HealthRow),
}

/// Counts of exported rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    /// How many measurements.
    pub measurements: usize,
    /// How many health rows.
    pub health: usize,
}

/// Why an export stopped.
#[derive(Debug)]
pub enum ExportError {
    /// The destination failed.
    Write(std::io::Error),
    /// A row has no JSON form.
    Encode(serde_json::Error),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(error) => write!(f, "cannot write the export: {error}"),
            Self::Encode(error) => write!(f, "cannot write a row as JSON: {error}"),
        }
    }
}

impl std::error::Error for ExportError {}

/// Maximum number of reported lines; the rest is counted.
const MAX_REPORTED_LINES: usize = 20;

/// Why an import failed. Nothing was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportError {
    /// The file cannot be read.
    Unreadable(String),
    /// It is not an export of this crate, or has invalid lines.
    Rejected {
        /// The first invalid lines.
        lines: Vec<RejectedLine>,
        /// The total number of invalid lines.
        count: usize,
    },
    /// The database rejected it.
    Dropped(DropReason),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(message) => write!(f, "nothing was imported: {message}"),
            Self::Rejected { lines, count } => {
                write!(
                    f,
                    "nothing was imported: {count} invalid line{}",
                    if *count == 1 { "" } else { "s" }
                )?;
                for line in lines {
                    write!(f, "\n  line {}: {}", line.line, line.message)?;
                }
                if *count > lines.len() {
                    write!(f, "\n  … and {} more", count - lines.len())
                } else {
                    Ok(())
                }
            }
            Self::Dropped(reason) => write!(f, "nothing was imported: {reason}"),
        }
    }
}

impl std::error::Error for ImportError {}

impl From<DropReason> for ImportError {
    fn from(reason: DropReason) -> ImportError {
        ImportError::Dropped(reason)
    }
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLine {
    /// The line number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// Measurements stored.
    pub stored: usize,
    /// Measurements skipped because a later one exists.
    pub kept: usize,
    /// Health rows passed to the database.
    pub health: usize,
}

impl PerfDb {
    /// Writes the measurements that match a filter, and all health rows, as JSON lines.
    pub fn export(&self, filter: &Filter, to: &mut impl Write) -> Result<Exported, ExportError> {
        let mut write = |line: &Line| -> Result<(), ExportError> {
            let text = serde_json::to_string(line).map_err(ExportError::Encode)?;
            writeln!(to, "{text}").map_err(ExportError::Write)
        };
        write(&Line::Header { format: EXCHANGE_FORMAT.to_owned(), version: EXCHANGE_VERSION })?;
        let mut exported = Exported::default();
        for evidence in self.show(filter, usize::MAX) {
            write(&Line::Measurement(Box::new(evidence)))?;
            exported.measurements += 1;
        }
        for row in self.load_health(filter.device_uuid.as_deref()) {
            write(&Line::Health(row))?;
            exported.health += 1;
        }
        Ok(exported)
    }

    /// Imports a file; see [`PerfDb::import`].
    pub fn import_file(&self, path: &Path) -> Result<ImportReport, ImportError> {
        let read = RegularFile::open(path).and_then(|mut file| file.bytes(MAX_EXPORT_BYTES));
        let bytes = read.map_err(|error| ImportError::Unreadable(error.to_string()))?;
        self.import(bytes.as_slice())
    }

    /// Reads JSON lines, all or none: if any line is invalid, nothing is stored and the invalid lines are reported.
    pub fn import(&self, from: impl BufRead) -> Result<ImportReport, ImportError> {
        let (mut measurements, mut health) = (Vec::new(), Vec::new());
        let (mut lines, mut count) = (Vec::new(), 0);
        let mut has_header = false;
        for (index, text) in from.lines().enumerate() {
            let mut reject = |message: String| {
                count += 1;
                if lines.len() < MAX_REPORTED_LINES {
                    lines.push(RejectedLine { line: index + 1, message });
                }
            };
            let text = match text {
                Ok(text) => text,
                Err(error) => {
                    reject(format!("cannot be read: {error}"));
                    break;
                }
            };
            if text.trim().is_empty() {
                continue;
            }
            match serde_json::from_str::<Line>(&text) {
                Ok(Line::Header { format, version }) => {
                    if format != EXCHANGE_FORMAT || version != EXCHANGE_VERSION {
                        reject(format!(
                            "format `{format}` version {version} is not `{EXCHANGE_FORMAT}` version {EXCHANGE_VERSION}"
                        ));
                        break;
                    }
                    has_header = true;
                }
                Ok(_) | Err(_) if !has_header => {
                    reject("the first line must be the header that `export` writes".to_owned());
                    break;
                }
                Ok(Line::Measurement(evidence)) => {
                    let Evidence { key, timing, expires_at, .. } = (*evidence).clone();
                    match (Measurement { key, timing, expires_at }).check() {
                        Ok(()) => measurements.push(*evidence),
                        Err(rejection) => reject(rejection.to_string()),
                    }
                }
                Ok(Line::Health(row)) => health.push(row),
                Err(error) => reject(error.to_string()),
            }
        }
        if !has_header && count == 0 {
            lines.push(RejectedLine { line: 1, message: "the file is empty".to_owned() });
            count = 1;
        }
        if count > 0 {
            return Err(ImportError::Rejected { lines, count });
        }
        let (stored, kept) = self.write(|transaction| {
            let (mut stored, mut kept) = (0, 0);
            for evidence in &measurements {
                let known = find(transaction, &evidence.key)?;
                if known.is_some_and(|known| known.timing.measured_at >= evidence.timing.measured_at) {
                    kept += 1;
                } else {
                    upsert(transaction, evidence)?;
                    stored += 1;
                }
            }
            Ok((stored, kept))
        })?;
        self.save_health(&health)?;
        Ok(ImportReport { stored, kept, health: health.len() })
    }
}
