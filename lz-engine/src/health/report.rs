//! Circuits for operators: a listing of records of this process and of the database.

use std::time::Duration;

use super::monitor::named;
use super::permit::RefusalScope;
use super::registry::{Key, Record};
use lz_perfdb::{HealthRow, HealthScope, HealthState};

/// A circuit with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitReport {
    /// The kind of circuit.
    pub scope: RefusalScope,
    /// The kernel, backend or device.
    pub name: String,
    /// The version that failed; empty for devices.
    pub version: String,
    /// The words of the context bucket; empty for backends and devices.
    pub bucket: Vec<u64>,
    /// Its state.
    pub state: HealthState,
    /// Unforgiven failures.
    pub failures: u32,
    /// Unforgiven openings.
    pub openings: u32,
    /// The text of the latest error.
    pub last_error: String,
    /// Time until the next probe; `None` if calls are not refused, or for a lost device.
    pub retry_in: Option<Duration>,
    /// Whether it stays open until it is reset: the kernel returned a wrong result.
    pub quarantined: bool,
    /// Only in the database: this process does not use it, because this name and version is not registered or the row is too
    /// old.
    pub stored_only: bool,
}

impl CircuitReport {
    pub(super) fn of(key: &Key, record: &Record, now: Duration) -> CircuitReport {
        let (scope, name) = named(key);
        let circuit = &record.circuit;
        CircuitReport {
            scope,
            name,
            version: record.version.clone(),
            bucket: if let Key::Kernel(_, bucket) = key { bucket.to_vec() } else { Vec::new() },
            state: circuit.state(),
            failures: circuit.failures(),
            openings: circuit.openings(),
            last_error: circuit.last_error().to_owned(),
            retry_in: circuit
                .next_probe_at()
                .map(|due| due.saturating_sub(now))
                .filter(|wait| !wait.is_zero()),
            quarantined: circuit.is_lost(),
            stored_only: false,
        }
    }

    /// From a row of the database that this process does not use.
    pub(crate) fn of_row(row: &HealthRow, unix_now: u64) -> CircuitReport {
        let wait = row.next_probe_at.unwrap_or(0).saturating_sub(unix_now);
        CircuitReport {
            scope: match row.scope {
                HealthScope::Kernel => RefusalScope::Kernel,
                HealthScope::Backend => RefusalScope::Backend,
            },
            name: row.name.clone(),
            version: row.version.clone(),
            bucket: row.bucket.words().to_vec(),
            state: row.state,
            failures: row.failures,
            openings: row.reopenings,
            last_error: row.last_error.clone(),
            retry_in: (wait > 0).then(|| Duration::from_secs(wait)),
            quarantined: row.is_quarantined(),
            stored_only: true,
        }
    }

    /// Whether calls are refused now: a circuit that is due for a probe does not refuse.
    pub fn refuses(&self) -> bool {
        self.state == HealthState::Open && (self.quarantined || self.retry_in.is_some())
    }

    /// Whether both are the same circuit.
    pub(crate) fn is_same(&self, other: &CircuitReport) -> bool {
        self.scope == other.scope && self.name == other.name && self.bucket == other.bucket
    }
}
