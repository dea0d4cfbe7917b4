//! Health of kernels, backends and devices, and whether calls can be served.

use lz_core::device::Platform;
use lz_engine::health::CircuitReport;
use lz_engine::readiness::Readiness;
use serde_json::{Value, json};

use super::{Source, bucket};

/// The degradation level and all circuits with recorded failures.
pub fn health(source: &Source) -> Value {
    let engine = &source.engine;
    let registry = engine.registry();
    let summary = engine.health().summary();
    let circuit = |circuit: CircuitReport| {
        let entry = registry.kernel(&circuit.name);
        let operation = entry.map(|entry| entry.spec.operation.as_str());
        let info = operation.and_then(|name| registry.operation(name));
        let label =
            info.filter(|_| !circuit.bucket.is_empty()).map(|info| bucket::label(info, &circuit.bucket));
        json!({
            "scope": circuit.scope.name(),
            "name": circuit.name,
            "version": circuit.version,
            "operation": operation,
            "bucket": label,
            "state": circuit.state.name(),
            "refuses": circuit.refuses(),
            "failures": circuit.failures,
            "openings": circuit.openings,
            "last_error": circuit.last_error,
            "retry_seconds": circuit.retry_in.map(|wait| wait.as_secs_f64()),
            "stored_only": circuit.stored_only,
        })
    };
    let counters = summary.counters;
    json!({
        "level": format!("{:?}", summary.level),
        "score": summary.score,
        "counters": {
            "failures": counters.failures,
            "caller_failures": counters.caller_failures,
            "capacity_failures": counters.capacity_failures,
            "environment_failures": counters.environment_failures,
            "openings": counters.openings,
            "closings": counters.closings,
            "probes": counters.probes,
            "refusals": counters.refusals,
        },
        "circuits": engine.circuits().into_iter().map(circuit).collect::<Vec<Value>>(),
        "readiness": readiness(source),
    })
}

/// Whether the host can serve calls, with each check.
pub fn readiness(source: &Source) -> Readiness {
    source.engine.readiness(&[Platform::Cpu])
}
