//! The records behind the lock: circuits with failures, by kernel and bucket, backend and device.

use std::collections::HashMap;
use std::time::Duration;

use super::circuit::Circuit;
use super::config::{CircuitConfig, HealthConfig};
use super::permit::Subject;
use lz_perfdb::HealthState;

/// A circuit and its metadata.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub circuit: Circuit,
    pub version: String,
    pub updated_at: Duration,
    /// Imported and without activity in this process, so it is not exported.
    pub imported: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    Kernel(String, Box<[u64]>),
    Backend(String),
    Device(String),
}

/// Kernels are nested maps, so that a lookup borrows its key.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub kernels: HashMap<String, HashMap<Box<[u64]>, Record>>,
    pub backends: HashMap<String, Record>,
    pub devices: HashMap<String, Record>,
    /// Versions of removed records whose stored rows must be deleted.
    pub forgiven: HashMap<Key, String>,
}

impl Registry {
    pub fn len(&self) -> usize {
        self.kernels.values().map(HashMap::len).sum::<usize>() + self.backends.len() + self.devices.len()
    }

    pub fn get_mut(&mut self, key: &Key) -> Option<&mut Record> {
        match key {
            Key::Kernel(kernel, bucket) => self.kernels.get_mut(kernel)?.get_mut(bucket),
            Key::Backend(name) => self.backends.get_mut(name),
            Key::Device(uuid) => self.devices.get_mut(uuid),
        }
    }

    pub fn kernel_mut(&mut self, subject: &Subject<'_>) -> Option<&mut Record> {
        let record = self.kernels.get_mut(subject.kernel)?.get_mut(subject.bucket)?;
        (record.version == subject.kernel_version).then_some(record)
    }

    pub fn backend_mut(&mut self, subject: &Subject<'_>) -> Option<&mut Record> {
        let record = self.backends.get_mut(subject.backend)?;
        (record.version == subject.backend_version).then_some(record)
    }

    /// The record of a key and version, inserted if missing. A record of another version is replaced. `None` if the table is full of
    /// circuits that are not closed.
    pub fn entry(
        &mut self,
        key: &Key,
        version: &str,
        now: Duration,
        max_records: usize,
    ) -> Option<&mut Record> {
        let known = self.get_mut(key).is_some();
        if !known && self.len() >= max_records && !self.evict_one() {
            return None;
        }
        self.forgiven.remove(key);
        let fresh = || Record {
            circuit: Circuit::default(),
            version: version.to_owned(),
            updated_at: now,
            imported: false,
        };
        let record = match key {
            Key::Kernel(kernel, bucket) => {
                self.kernels.entry(kernel.clone()).or_default().entry(bucket.clone()).or_insert_with(fresh)
            }
            Key::Backend(name) => self.backends.entry(name.clone()).or_insert_with(fresh),
            Key::Device(uuid) => self.devices.entry(uuid.clone()).or_insert_with(fresh),
        };
        if record.version != version {
            *record = fresh();
        }
        record.updated_at = now;
        record.imported = false;
        Some(record)
    }

    /// Removes a record and schedules the deletion of its stored row.
    pub fn forgive(&mut self, key: &Key) {
        let record = match key {
            Key::Kernel(kernel, bucket) => {
                let buckets = self.kernels.get_mut(kernel);
                let record = buckets.and_then(|buckets| buckets.remove(bucket));
                if self.kernels.get(kernel).is_some_and(HashMap::is_empty) {
                    self.kernels.remove(kernel);
                }
                record
            }
            Key::Backend(name) => self.backends.remove(name),
            Key::Device(uuid) => self.devices.remove(uuid),
        };
        if let Some(record) = record {
            // Bounded in case nothing is exported; a missed row is overwritten or expires.
            const MAX_FORGIVEN: usize = 4096;
            if self.forgiven.len() < MAX_FORGIVEN {
                self.forgiven.insert(key.clone(), record.version);
            }
        }
    }

    /// Evicts the closed kernel record that was least recently updated.
    fn evict_one(&mut self) -> bool {
        let oldest = self
            .records()
            .filter(|(key, record)| {
                matches!(key, Key::Kernel(..)) && record.circuit.state() == HealthState::Closed
            })
            // The key breaks ties, so that the choice is deterministic.
            .map(|(key, record)| (record.updated_at, key))
            .min()
            .map(|(_, key)| key);
        if let Some(key) = &oldest {
            self.forgive(key);
        }
        oldest.is_some()
    }

    pub fn records(&self) -> impl Iterator<Item = (Key, &Record)> {
        let kernels = self.kernels.iter().flat_map(|(kernel, buckets)| {
            buckets.iter().map(move |(bucket, record)| (Key::Kernel(kernel.clone(), bucket.clone()), record))
        });
        let backends = self.backends.iter().map(|(name, record)| (Key::Backend(name.clone()), record));
        let devices = self.devices.iter().map(|(uuid, record)| (Key::Device(uuid.clone()), record));
        kernels.chain(backends).chain(devices)
    }

    /// Keys with a timed transition due by `now`, in deterministic order.
    pub fn due(&self, now: Duration, config: &HealthConfig) -> Vec<Key> {
        let mut keys: Vec<Key> = self
            .records()
            .filter(|(key, record)| {
                record.circuit.due_at(circuit_config(key, config)).is_some_and(|due| due <= now)
            })
            .map(|(key, _)| key)
            .collect();
        keys.sort();
        keys
    }
}

pub(super) fn circuit_config<'c>(key: &Key, config: &'c HealthConfig) -> &'c CircuitConfig {
    match key {
        Key::Kernel(..) => &config.kernel,
        Key::Backend(_) | Key::Device(_) => &config.backend,
    }
}
