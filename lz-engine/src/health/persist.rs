//! Persistence of health: circuits to and from rows of the performance database.
//!
//! Devices are not stored: a lost context ends with its process.

use std::time::Duration;

use super::Health;
use super::circuit::Circuit;
use super::monitor::Change;
use super::permit::RefusalScope;
use super::registry::{Key, Record};
use lz_perfdb::{Bucket, HealthRow, HealthScope, HealthState};

/// Rows older than this are ignored: the cause of the failure may be gone.
const MAX_ROW_AGE_SECONDS: u64 = 24 * 3600;

impl Health {
    /// Rows for all circuits with activity in this process, and a healthy row for each circuit that was forgiven since the last export,
    /// so that its stored row is deleted.
    pub fn export(&self, device_uuid: &str) -> Vec<HealthRow> {
        let (now, unix) = (self.clock.elapsed(), self.clock.unix_seconds());
        let mut state = self.lock();
        let forgiven = std::mem::take(&mut state.registry.forgiven);
        let healthy = forgiven.into_iter().filter_map(|(key, version)| {
            let record = Record { circuit: Circuit::default(), version, updated_at: now, imported: false };
            row(&key, &record, device_uuid, now, unix)
        });
        let mut rows: Vec<HealthRow> = healthy
            .chain(
                state
                    .registry
                    .records()
                    .filter(|(_, record)| !record.imported)
                    .filter_map(|(key, record)| row(&key, record, device_uuid, now, unix)),
            )
            .collect();
        let order = |row: &HealthRow| (row.scope, row.name.clone(), row.bucket.clone());
        rows.sort_by_key(order);
        rows
    }

    /// Imports rows of an earlier process. Ignores rows of another device, rows older than a day, and rows whose version differs from
    /// `current_version` (`None`: not registered). Records of this process take precedence. Returns the number of imported rows.
    pub fn import(
        &self,
        rows: &[HealthRow],
        device_uuid: &str,
        current_version: impl Fn(HealthScope, &str) -> Option<String>,
    ) -> usize {
        let unix = self.clock.unix_seconds();
        let mut imported = 0;
        self.apply(self.lock(), |health, state, now, changes| {
            let whole = health.config();
            for row in rows {
                let current = current_version(row.scope, &row.name);
                let is_old = unix.saturating_sub(row.updated_at) > MAX_ROW_AGE_SECONDS;
                if is_old
                    || row.device_uuid != device_uuid
                    || current.as_deref() != Some(row.version.as_str())
                {
                    continue;
                }
                let (key, scope, config) = match row.scope {
                    HealthScope::Kernel => (
                        Key::Kernel(row.name.clone(), row.bucket.words().into()),
                        RefusalScope::Kernel,
                        &whole.kernel,
                    ),
                    HealthScope::Backend => {
                        (Key::Backend(row.name.clone()), RefusalScope::Backend, &whole.backend)
                    }
                };
                if state.registry.get_mut(&key).is_some() {
                    continue;
                }
                // Clamped, because a calendar jump must not disable a kernel for years.
                let wait = Duration::from_secs(row.next_probe_at.unwrap_or(unix).saturating_sub(unix));
                let next_probe_at = now.saturating_add(wait.min(config.max_backoff));
                let next_probe_at = (!row.is_quarantined()).then_some(next_probe_at);
                let Some(record) = state.registry.entry(&key, &row.version, now, whole.max_circuits) else {
                    continue;
                };
                record.circuit = Circuit::restored(
                    row.state,
                    row.failures,
                    row.reopenings,
                    next_probe_at,
                    row.last_error.clone(),
                    config,
                );
                record.imported = true;
                imported += 1;
                let (name, last_error) = (row.name.clone(), row.last_error.clone());
                changes.push(match record.circuit.state() {
                    HealthState::Closed => Change::Weight { name },
                    to => Change::Circuit { scope, name, from: HealthState::Closed, to, last_error },
                });
            }
        });
        imported
    }
}

fn row(key: &Key, record: &Record, device_uuid: &str, now: Duration, unix: u64) -> Option<HealthRow> {
    let (scope, name, bucket) = match key {
        Key::Kernel(kernel, bucket) => (HealthScope::Kernel, kernel, Bucket::from(bucket.as_ref())),
        Key::Backend(name) => (HealthScope::Backend, name, Bucket::default()),
        Key::Device(_) => return None,
    };
    let circuit = &record.circuit;
    // Rounded up: a restart must not bring the probe forward.
    let wait = |due: Duration| {
        let left = due.saturating_sub(now);
        left.as_secs() + u64::from(left.subsec_nanos() > 0)
    };
    Some(HealthRow {
        scope,
        name: name.clone(),
        version: record.version.clone(),
        device_uuid: device_uuid.to_owned(),
        bucket,
        state: circuit.state(),
        failures: circuit.failures(),
        reopenings: circuit.openings(),
        last_error: circuit.last_error().to_owned(),
        next_probe_at: circuit.next_probe_at().map(|due| unix.saturating_add(wait(due))),
        updated_at: unix,
    })
}
