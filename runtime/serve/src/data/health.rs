//! Health of kernels, backends and devices, and whether calls can be served.

use lz_core::device::Platform;
use lz_engine::health::{CircuitReport, DegradationLevel};
use lz_engine::registry::BackendState;
use serde::Serialize;
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

/// Whether calls can be served, with each check.
#[derive(Debug, Serialize)]
pub struct Readiness {
    /// Whether all checks passed.
    pub ready: bool,
    /// The checks.
    pub checks: Vec<Check>,
}

/// One check of readiness.
#[derive(Debug, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Whether it passed.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

/// Whether the host can serve calls: every operation has a kernel, the engine is healthy, and no backend or circuit refuses calls.
pub fn readiness(source: &Source) -> Readiness {
    let engine = &source.engine;
    let registry = engine.registry();
    let without = registry.operations_without_kernel(Platform::Cpu);
    let disabled: Vec<String> = registry
        .backends()
        .filter_map(|(name, backend)| match &backend.state {
            BackendState::Available => None,
            BackendState::Disabled(reason) => Some(format!("{name}: {}", reason.sentence())),
        })
        .collect();
    let level = engine.health().summary().level;
    let open = engine.health().circuits().iter().filter(|circuit| circuit.refuses()).count();
    let or = |text: String, otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text };
    let checks = vec![
        Check {
            name: "kernels",
            ok: without.is_empty(),
            detail: or(without.join(", "), "every operation has a kernel on the host"),
        },
        Check { name: "health", ok: level == DegradationLevel::Full, detail: format!("{level:?}") },
        Check {
            name: "backends",
            ok: disabled.is_empty(),
            detail: or(disabled.join("; "), "all registered backends are available"),
        },
        Check { name: "circuits", ok: open == 0, detail: format!("circuits that refuse calls: {open}") },
    ];
    Readiness { ready: checks.iter().all(|check| check.ok), checks }
}
