//! Health across restarts: circuits as rows of the performance database, and back.
//!
//! Devices are not kept: a lost context ends with its process, and the next one gets a new context.

use std::time::Duration;

use super::Health;
use super::circuit::Circuit;
use super::monitor::Change;
use super::permit::RefusalScope;
use super::registry::{Key, Record};
use lz_perfdb::{Bucket, HealthRow, HealthScope, HealthState};

/// After so long a failure in another process says nothing any more: its cause may be gone.
const ROW_LIFE_SECONDS: u64 = 24 * 3600;

impl Health {
    /// Every circuit that this process has seen something of, as rows, and a healthy row for each one that was forgiven since the last
    /// export, so that storing them deletes the old ones.
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

    /// Takes rows of an earlier process. Rows of another device are left out, rows that are older than a day, and rows of
    /// another version than `current_version` says (`None`: not registered): a new version starts clean. What this process knows itself stays.
    /// Says how many rows were taken.
    pub fn import(
        &self,
        rows: &[HealthRow],
        device_uuid: &str,
        current_version: impl Fn(HealthScope, &str) -> Option<String>,
    ) -> usize {
        let unix = self.clock.unix_seconds();
        let mut taken = 0;
        self.apply(self.lock(), |health, state, now, changes| {
            let whole = health.config();
            for row in rows {
                let current = current_version(row.scope, &row.name);
                let is_old = unix.saturating_sub(row.updated_at) > ROW_LIFE_SECONDS;
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
                // A calendar that jumped must not lock a kernel away for years.
                let wait = Duration::from_secs(row.next_probe_at.unwrap_or(unix).saturating_sub(unix));
                let next_probe_at = now.saturating_add(wait.min(config.max_backoff));
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
                taken += 1;
                let (name, last_error) = (row.name.clone(), row.last_error.clone());
                changes.push(match record.circuit.state() {
                    HealthState::Closed => Change::Weight { name },
                    to => Change::Circuit { scope, name, from: HealthState::Closed, to, last_error },
                });
            }
        });
        taken
    }
}

fn row(key: &Key, record: &Record, device_uuid: &str, now: Duration, unix: u64) -> Option<HealthRow> {
    let (scope, name, bucket) = match key {
        Key::Kernel(kernel, bucket) => (HealthScope::Kernel, kernel, Bucket::from(bucket.as_ref())),
        Key::Backend(name) => (HealthScope::Backend, name, Bucket::default()),
        Key::Device(_) => return None,
    };
    let circuit = &record.circuit;
    // Rounded up: a restart must not bring a probe forward.
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
