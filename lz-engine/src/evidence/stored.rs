//! Measurements from the database: loaded once for the given devices, then read-only.
//!
//! Queried on the slow path, so everything that does not depend on the call is computed at load time.

use std::collections::BTreeMap;

use super::{Evidence, EvidenceQuery, KernelEvidence, Measured, dtypes_text};
use lz_core::device::{DeviceSpec, Environment};
use lz_perfdb as perfdb;
use lz_perfdb::{PerfDb, Setting, confidence, decay, unix_now};

/// The measurements of a database at load time. Reload it and set it again when there are new measurements.
#[derive(Debug, Default)]
pub struct StoredEvidence {
    pub(crate) loaded_at: u64,
    pub(crate) devices: Vec<DeviceMeasurements>,
}

/// The measurements of one device.
#[derive(Debug)]
pub(crate) struct DeviceMeasurements {
    pub uuid: String,
    /// Groups by operation, each sorted by bucket and dtypes.
    pub operations: BTreeMap<String, Vec<Group>>,
}

/// The measurements of one bucket and its dtypes.
#[derive(Debug)]
pub(crate) struct Group {
    pub bucket: Box<[u64]>,
    pub dtypes: String,
    pub rows: Vec<Row>,
}

/// One measured kernel.
#[derive(Debug)]
pub(crate) struct Row {
    kernel: String,
    version: String,
    capabilities_hash: String,
    median_ns: f64,
    samples: u64,
    measured_at: u64,
    /// Expiry, in seconds since 1970.
    pub expires_at: u64,
    /// Confidence at load time.
    confidence: f64,
}

impl StoredEvidence {
    /// Loads the valid measurements of these devices and operations under the environment that `environment` returns. `torch` is empty
    /// if torch is not loaded.
    pub fn load<'a>(
        database: &PerfDb,
        devices: impl IntoIterator<Item = &'a DeviceSpec>,
        operations: impl IntoIterator<Item = &'a str> + Clone,
        torch: &str,
        environment: impl Fn(&DeviceSpec) -> Environment,
    ) -> StoredEvidence {
        let loaded_at = unix_now();
        let mut known = Vec::new();
        for device in devices {
            let setting = Setting::of(device, torch);
            let environment = environment(device);
            let mut by_operation = BTreeMap::new();
            for operation in operations.clone() {
                let evidence = database.load_operation(operation, &setting, loaded_at);
                if !evidence.rows().is_empty() {
                    by_operation
                        .insert(operation.to_owned(), groups(evidence.rows(), loaded_at, environment));
                }
            }
            known.push(DeviceMeasurements { uuid: device.uuid.clone(), operations: by_operation });
        }
        StoredEvidence { loaded_at, devices: known }
    }

    /// Number of measurements.
    pub fn len(&self) -> usize {
        let operations = self.devices.iter().flat_map(|device| device.operations.values());
        operations.flatten().map(|group| group.rows.len()).sum()
    }

    /// Whether there are no measurements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Row {
    /// The finding at `now`; `left` is the remaining share of its confidence at load time.
    pub fn finding(&self, now: u64, left: f64) -> KernelEvidence<'_> {
        KernelEvidence {
            kernel: &self.kernel,
            version: &self.version,
            capabilities_hash: &self.capabilities_hash,
            measured: Measured {
                median_ns: self.median_ns,
                samples: self.samples,
                age_seconds: now.saturating_sub(self.measured_at),
                confidence: self.confidence * left,
            },
        }
    }
}

fn groups(rows: &[perfdb::Evidence], now: u64, environment: Environment) -> Vec<Group> {
    let mut groups: BTreeMap<(&[u64], &str), Vec<Row>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.key.bucket.words(), &row.key.dtypes)).or_default().push(Row {
            kernel: row.key.kernel.clone(),
            version: row.key.kernel_version.clone(),
            capabilities_hash: row.key.capabilities_hash.clone(),
            median_ns: row.timing.median_ns,
            samples: row.timing.samples,
            measured_at: row.timing.measured_at,
            expires_at: row.expires_at.unwrap_or(u64::MAX),
            confidence: confidence(row, now, environment),
        });
    }
    let group = |((bucket, dtypes), rows): ((&[u64], &str), Vec<Row>)| Group {
        bucket: bucket.into(),
        dtypes: dtypes.to_owned(),
        rows,
    };
    groups.into_iter().map(group).collect()
}

impl Evidence for StoredEvidence {
    fn findings(&self, question: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>)) {
        let device = self.devices.iter().find(|device| device.uuid == question.device.uuid);
        let Some(groups) = device.and_then(|known| known.operations.get(question.operation.name.as_ref()))
        else {
            return;
        };
        let dtypes = dtypes_text(question.operation, question.context);
        let key = (question.bucket, dtypes.as_str());
        let index = groups.binary_search_by(|group| (&*group.bucket, group.dtypes.as_str()).cmp(&key));
        let Some(group) = index.ok().and_then(|index| groups.get(index)) else { return };
        let now = unix_now();
        let since = decay(now.saturating_sub(self.loaded_at));
        for row in group.rows.iter().filter(|row| now < row.expires_at) {
            visit(&row.finding(now, since));
        }
    }

    fn stored(&self) -> Option<&StoredEvidence> {
        Some(self)
    }
}
