//! Circuits as operators see them: a listing of what is remembered, of this process and of the database.

use std::time::Duration;

use super::monitor::named;
use super::permit::RefusalScope;
use super::registry::{Key, Record};
use lz_perfdb::{HealthRow, HealthScope, HealthState};

/// One circuit that has something to remember.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitReport {
    /// Whose circuit it is.
    pub scope: RefusalScope,
    /// The kernel, backend or device.
    pub name: String,
    /// The version that failed; empty for devices.
    pub version: String,
    /// The words of the context bucket; empty for backends and devices.
    pub bucket: Vec<u64>,
    /// Its state.
    pub state: HealthState,
    /// Failures that are not forgiven.
    pub failures: u32,
    /// Openings that are not forgiven.
    pub openings: u32,
    /// The text of the latest error.
    pub last_error: String,
    /// How long calls are refused; `None` when they are not, or for a lost device.
    pub retry_in: Option<Duration>,
    /// Only stored: this process does not use it, because nothing of this name and version is registered here, or because the
    /// record is too old.
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
            stored_only: false,
        }
    }

    /// A row of the database that this process does not use.
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
            stored_only: true,
        }
    }

    /// Whether calls are refused now: a circuit that waits for a probe refuses nothing.
    pub fn refuses(&self) -> bool {
        let lost = self.scope == RefusalScope::Device;
        self.state == HealthState::Open && (lost || self.retry_in.is_some())
    }

    /// Whether two listings mean the same circuit.
    pub(crate) fn is_same(&self, other: &CircuitReport) -> bool {
        self.scope == other.scope && self.name == other.name && self.bucket == other.bucket
    }
}
