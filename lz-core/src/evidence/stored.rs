//! Measurements of the database as evidence: loaded once for the devices at hand, then only read.

use std::collections::HashMap;

use super::{Evidence, Finding, Measured, Question, dtypes_text};
use crate::device::{DeviceSpec, Environment};
use crate::perfdb::{OperationEvidence, PerfDb, Setting, confidence, unix_now};

/// What a database knew when it was loaded. Load it again, and give it to the engine again, when there is more to know.
#[derive(Debug, Default)]
pub struct StoredEvidence {
    /// By device and operation.
    known: HashMap<String, HashMap<String, OperationEvidence>>,
    /// The present conditions, by device.
    environments: HashMap<String, Environment>,
}

impl StoredEvidence {
    /// Loads what counts for these devices and operations under the conditions that `environment` tells. `torch` is empty when torch is not
    /// loaded.
    pub fn load<'a>(
        database: &PerfDb,
        devices: impl IntoIterator<Item = &'a DeviceSpec>,
        operations: impl IntoIterator<Item = &'a str> + Clone,
        torch: &str,
        environment: impl Fn(&DeviceSpec) -> Environment,
    ) -> StoredEvidence {
        let now = unix_now();
        let mut known = HashMap::new();
        let mut environments = HashMap::new();
        for device in devices {
            let setting = Setting::of(device, torch);
            let mut by_operation = HashMap::new();
            for operation in operations.clone() {
                let evidence = database.load_operation(operation, &setting, now);
                if !evidence.rows().is_empty() {
                    by_operation.insert(operation.to_owned(), evidence);
                }
            }
            known.insert(device.uuid.clone(), by_operation);
            environments.insert(device.uuid.clone(), environment(device));
        }
        StoredEvidence { known, environments }
    }

    /// How many measurements there are.
    pub fn len(&self) -> usize {
        self.known.values().flat_map(HashMap::values).map(|evidence| evidence.rows().len()).sum()
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Evidence for StoredEvidence {
    fn findings(&self, question: &Question<'_>, tell: &mut dyn FnMut(&Finding<'_>)) {
        let by_operation = self.known.get(&question.device.uuid);
        let Some(evidence) = by_operation.and_then(|known| known.get(question.operation.name.as_ref()))
        else {
            return;
        };
        let rows = evidence.of_bucket(question.bucket);
        if rows.is_empty() {
            return;
        }
        let now = unix_now();
        let environment = self.environments.get(&question.device.uuid).copied().unwrap_or_default();
        let dtypes = dtypes_text(question.operation, question.context);
        for row in rows.iter().filter(|row| row.key.dtypes == dtypes) {
            tell(&Finding {
                kernel: &row.key.kernel,
                version: &row.key.kernel_version,
                capabilities_hash: &row.key.capabilities_hash,
                measured: Measured {
                    median_ns: row.timing.median_ns,
                    samples: row.timing.samples,
                    age_seconds: now.saturating_sub(row.timing.measured_at),
                    confidence: confidence(row, now, environment),
                },
            });
        }
    }
}
