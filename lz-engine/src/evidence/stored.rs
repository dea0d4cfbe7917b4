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
        Self::load_settings(database, devices, operations, |device| Setting::of(device, torch), environment)
    }

    /// Like [`StoredEvidence::load`], from a file with measurements of a fleet: those of any device of the same type.
    pub fn load_fleet<'a>(
        database: &PerfDb,
        devices: impl IntoIterator<Item = &'a DeviceSpec>,
        operations: impl IntoIterator<Item = &'a str> + Clone,
        torch: &str,
        environment: impl Fn(&DeviceSpec) -> Environment,
    ) -> StoredEvidence {
        Self::load_settings(
            database,
            devices,
            operations,
            |device| Setting::of_type(device, torch),
            environment,
        )
    }

    fn load_settings<'a>(
        database: &PerfDb,
        devices: impl IntoIterator<Item = &'a DeviceSpec>,
        operations: impl IntoIterator<Item = &'a str> + Clone,
        setting: impl Fn(&DeviceSpec) -> Setting,
        environment: impl Fn(&DeviceSpec) -> Environment,
    ) -> StoredEvidence {
        let loaded_at = unix_now();
        let mut known = Vec::new();
        for device in devices {
            let setting = setting(device);
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

    /// Adds measurements of other machines, for kernels that were not measured here.
    #[must_use]
    pub fn with_fleet(mut self, fleet: StoredEvidence) -> StoredEvidence {
        self.loaded_at = self.loaded_at.max(fleet.loaded_at);
        for theirs in fleet.devices {
            match self.devices.iter_mut().find(|own| own.uuid == theirs.uuid) {
                Some(own) => theirs.operations.into_iter().for_each(|(operation, groups)| {
                    add_groups(own.operations.entry(operation).or_default(), groups);
                }),
                None => self.devices.push(theirs),
            }
        }
        self
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
    fn is_same_kernel(&self, other: &Row) -> bool {
        self.kernel == other.kernel
            && self.version == other.version
            && self.capabilities_hash == other.capabilities_hash
    }

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

/// Adds groups to sorted ones. Of one kernel, the rows that are already there count.
fn add_groups(known: &mut Vec<Group>, groups: Vec<Group>) {
    for group in groups {
        let key = (&*group.bucket, group.dtypes.as_str());
        match known.binary_search_by(|known| (&*known.bucket, known.dtypes.as_str()).cmp(&key)) {
            Ok(index) => {
                let Some(own) = known.get_mut(index) else { continue };
                let is_new = |row: &Row| !own.rows.iter().any(|known| known.is_same_kernel(row));
                let new: Vec<Row> = group.rows.into_iter().filter(is_new).collect();
                own.rows.extend(new);
            }
            Err(index) => known.insert(index, group),
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

#[cfg(test)]
mod tests {
    use super::*;
    use lz_perfdb::{Bucket, EvidenceKey, Measurement, Timing};
    use lz_test_support::Folder;

    fn database(folder: &Folder, name: &str, setting: &Setting, medians: &[(&str, f64)]) -> PerfDb {
        let db = PerfDb::open(folder.file(name)).db;
        for (kernel, median_ns) in medians {
            let key = EvidenceKey {
                kernel: (*kernel).to_owned(),
                kernel_version: "1".to_owned(),
                operation: "norm.rms".to_owned(),
                setting: setting.clone(),
                dtypes: "T=f32".to_owned(),
                bucket: Bucket::from([1].as_slice()),
                capabilities_hash: String::new(),
                environment: Environment::default(),
            };
            let timing = Timing {
                median_ns: *median_ns,
                p95_ns: *median_ns,
                variance_ns2: 0.0,
                samples: 10,
                warmup_ns: 0.0,
                measured_at: unix_now(),
            };
            db.record(&Measurement { key, timing, expires_at: None }).unwrap();
        }
        db
    }

    #[test]
    fn fleet_measurements_of_the_device_type_count_where_there_are_no_own_ones() {
        let folder = Folder::new();
        let device = lz_device::preset("h100").unwrap();
        let mut same_type = device.clone();
        same_type.uuid = "GPU-of-another-machine".to_owned();
        let own = database(&folder, "own.sqlite", &Setting::of(&device, ""), &[("a", 100.0)]);
        let shared = Setting::of_type(&same_type, "");
        let fleet = database(&folder, "fleet.sqlite", &shared, &[("a", 999.0), ("b", 50.0)]);
        let load_fleet =
            || StoredEvidence::load_fleet(&fleet, [&device], ["norm.rms"], "", |_| Environment::default());
        let own = StoredEvidence::load(&own, [&device], ["norm.rms"], "", |_| Environment::default());
        let both = own.with_fleet(load_fleet());
        let rows: Vec<(&str, f64)> = both.devices[0].operations["norm.rms"][0]
            .rows
            .iter()
            .map(|row| (row.kernel.as_str(), row.median_ns))
            .collect();
        assert_eq!(rows, [("a", 100.0), ("b", 50.0)]);
        let alone = StoredEvidence::default().with_fleet(load_fleet());
        assert_eq!((alone.len(), alone.loaded_at > 0), (2, true));
    }
}
