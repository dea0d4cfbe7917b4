//! Stored circuit states. Their semantics are in `lz_engine::health`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Row, params};
use serde::{Deserialize, Serialize};

use super::filter::seconds;
use super::{Bucket, DropReason, PerfDb, unix_now};

/// The kind of circuit. Devices are not stored: a lost context ends with its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthScope {
    /// One kernel in one context bucket.
    Kernel,
    /// A whole backend.
    Backend,
}

/// The state of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// Calls pass.
    Closed,
    /// Calls are refused until the next probe.
    Open,
    /// Some calls pass as probes.
    HalfOpen,
}

/// A reset of stored states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReset {
    /// The kernel or backend; `None` for all.
    pub name: Option<String>,
    /// Distinguishes it from every other reset.
    pub id: String,
}

/// The scope of rows that record a reset. Versions of LayerZero without resets skip rows with an unknown scope.
const RESET: &str = "reset";

impl HealthScope {
    const fn name(self) -> &'static str {
        match self {
            HealthScope::Kernel => "kernel",
            HealthScope::Backend => "backend",
        }
    }
}

impl HealthState {
    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            HealthState::Closed => "closed",
            HealthState::Open => "open",
            HealthState::HalfOpen => "half_open",
        }
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The stored state of one circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthRow {
    /// The kind of circuit.
    pub scope: HealthScope,
    /// The kernel or the backend.
    pub name: String,
    /// Its version: a new version starts without a record.
    pub version: String,
    /// The device it failed on.
    pub device_uuid: String,
    /// The context bucket; empty for backends.
    pub bucket: Bucket,
    /// The state of the circuit.
    pub state: HealthState,
    /// Unforgiven failures.
    pub failures: u32,
    /// Openings since it was last healthy; determines the backoff.
    pub reopenings: u32,
    /// The text of the latest error.
    pub last_error: String,
    /// When the next probe may run, in seconds since 1970.
    pub next_probe_at: Option<u64>,
    /// Time of the observation, in seconds since 1970.
    pub updated_at: u64,
}

impl HealthRow {
    /// Whether the circuit stays open until it is reset: the kernel returned a wrong result.
    pub fn is_quarantined(&self) -> bool {
        self.state == HealthState::Open && self.next_probe_at.is_none()
    }
}

impl PerfDb {
    /// Stores states. If two processes observed the same circuit, the later observation is kept. Healthy rows
    /// (closed, no failures, no openings) are deleted.
    pub fn save_health(&self, rows: &[HealthRow]) -> Result<(), DropReason> {
        if rows.is_empty() {
            return Ok(());
        }
        self.write(|transaction| {
            let mut delete = transaction.prepare_cached(
                "DELETE FROM health WHERE device_uuid = ?1 AND scope = ?2 AND name = ?3 AND version = ?4 AND bucket = ?5
                   AND updated_at <= ?6",
            )?;
            let mut upsert = transaction.prepare_cached(
                "INSERT INTO health (device_uuid, scope, name, version, bucket, state, failures, reopenings, last_error,
                                     next_probe_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?7, ?8, ?9, ?10, ?11, ?6)
                 ON CONFLICT DO UPDATE SET state = excluded.state, failures = excluded.failures,
                     reopenings = excluded.reopenings, last_error = excluded.last_error,
                     next_probe_at = excluded.next_probe_at, updated_at = excluded.updated_at
                 WHERE excluded.updated_at >= updated_at",
            )?;
            for row in rows {
                let (scope, bucket) = (row.scope.name(), row.bucket.to_bytes());
                let updated_at = seconds(row.updated_at);
                if row.state == HealthState::Closed && row.failures == 0 && row.reopenings == 0 {
                    delete.execute(params![row.device_uuid, scope, row.name, row.version, bucket, updated_at])?;
                } else {
                    upsert.execute(params![
                        row.device_uuid,
                        scope,
                        row.name,
                        row.version,
                        bucket,
                        updated_at,
                        row.state.name(),
                        row.failures,
                        row.reopenings,
                        row.last_error,
                        row.next_probe_at.map(seconds),
                    ])?;
                }
            }
            Ok(())
        })
    }

    /// Deletes the stored states of a name, or all, on one device, and stores that they were reset, for the other processes.
    pub fn reset_health(&self, device_uuid: &str, name: Option<&str>) -> Result<(), DropReason> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = unix_now();
        let id = format!("{now} {} {}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.write(|transaction| {
            let statement = "DELETE FROM health WHERE device_uuid = ?1 AND (?2 IS NULL OR name = ?2)";
            transaction.execute(statement, params![device_uuid, name])?;
            transaction.execute(
                "INSERT INTO health (device_uuid, scope, name, version, bucket, state, failures, reopenings, last_error, updated_at)
                 VALUES (?1, ?2, ?3, '', x'', 'closed', 0, 0, ?4, ?5)",
                params![device_uuid, RESET, name.unwrap_or_default(), id, seconds(now)],
            )?;
            Ok(())
        })
    }

    /// The resets on one device: the latest of each name. `None` if the database cannot be read now.
    pub fn resets(&self, device_uuid: &str) -> Option<Vec<HealthReset>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT name, last_error FROM health WHERE device_uuid = ?1 AND scope = ?2",
            )?;
            let rows = statement.query_map([device_uuid, RESET], |row| {
                let name: String = row.get(0)?;
                Ok(HealthReset { name: Some(name).filter(|name| !name.is_empty()), id: row.get(1)? })
            })?;
            rows.collect::<rusqlite::Result<_>>().map(Some)
        })
    }

    /// The stored states of one device, or of all, in key order.
    pub fn load_health(&self, device_uuid: Option<&str>) -> Vec<HealthRow> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT scope, name, version, device_uuid, bucket, state, failures, reopenings, last_error, next_probe_at,
                        updated_at
                 FROM health WHERE ?1 IS NULL OR device_uuid = ?1 ORDER BY device_uuid, scope, name, version, bucket",
            )?;
            let rows = statement.query_map([device_uuid], health_row)?;
            rows.filter_map(Result::transpose).collect()
        })
    }
}

fn health_row(row: &Row<'_>) -> rusqlite::Result<Option<HealthRow>> {
    let (scope, state): (String, String) = (row.get(0)?, row.get(5)?);
    let scope = [HealthScope::Kernel, HealthScope::Backend].into_iter().find(|known| known.name() == scope);
    let state = [HealthState::Closed, HealthState::Open, HealthState::HalfOpen]
        .into_iter()
        .find(|known| known.name() == state);
    let bucket = Bucket::from_bytes(&row.get::<_, Vec<u8>>(4)?);
    let (Some(scope), Some(state), Some(bucket)) = (scope, state, bucket) else { return Ok(None) };
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok(Some(HealthRow {
        scope,
        name: row.get(1)?,
        version: row.get(2)?,
        device_uuid: row.get(3)?,
        bucket,
        state,
        failures: row.get(6)?,
        reopenings: row.get(7)?,
        last_error: row.get(8)?,
        next_probe_at: row.get::<_, Option<i64>>(9)?.map(unsigned),
        updated_at: unsigned(row.get(10)?),
    }))
}
