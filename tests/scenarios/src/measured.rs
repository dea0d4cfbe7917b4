//! Measurements as a tuner stores them, and the evidence that an engine loads from them.

use std::sync::Arc;

use lz_core::KernelSpec;
use lz_core::device::{DeviceSpec, Environment};
use lz_engine::Engine;
use lz_engine::bucket::Bucket;
use lz_engine::evidence::{Evidence, StoredEvidence, dtypes_text};
use lz_perfdb::{EvidenceKey, Measurement, PerfDb, Setting, Timing, unix_now};

use crate::calls::ScenarioCall;

/// A measurement of a kernel for a call: 40 samples, low variance, measured now.
///
/// # Panics
/// If the call is invalid.
pub fn measurement(
    call: &impl ScenarioCall,
    spec: &KernelSpec,
    device: &DeviceSpec,
    median_ns: f64,
) -> Measurement {
    let (operation, context) = (call.operation(), call.context().unwrap_or_else(|error| panic!("{error}")));
    Measurement {
        key: EvidenceKey {
            kernel: spec.id.clone(),
            kernel_version: spec.version.clone(),
            operation: operation.name.to_string(),
            setting: Setting::of(device, ""),
            dtypes: dtypes_text(operation, &context),
            bucket: Bucket::of(operation, &context).words().into(),
            capabilities_hash: spec.capabilities_hash.clone(),
            environment: Environment::default(),
        },
        timing: Timing {
            median_ns,
            p95_ns: median_ns * 1.1,
            variance_ns2: 1.0,
            samples: 40,
            warmup_ns: 0.0,
            measured_at: unix_now(),
        },
        expires_at: None,
    }
}

/// Evidence for a device, loaded from the database.
pub fn evidence(database: &PerfDb, device: &DeviceSpec) -> Arc<dyn Evidence> {
    let operations = lz_ops::OPERATIONS.iter().map(|info| info.name.as_ref());
    Arc::new(StoredEvidence::load(database, [device], operations, "", |_: &DeviceSpec| {
        Environment::default()
    }))
}

/// Spec of a registered kernel.
///
/// # Panics
/// If no kernel has this id.
pub fn spec_of(engine: &Engine, kernel: &str) -> KernelSpec {
    let registry = engine.registry();
    let entry = registry.kernel(kernel).unwrap_or_else(|| panic!("there is no {kernel}"));
    KernelSpec::clone(&entry.spec)
}
