//! Metrics and recordings for C++.

use lz_core::{Error, Reason, ReasonCode};

use crate::call::{Failure, guarded};
use crate::data;
use crate::engine::Engine;

/// The counters of an engine, and all metrics as JSON.
pub fn engine_metrics(engine: &Engine) -> data::MetricsInfo {
    let metrics = engine.inner.metrics();
    data::MetricsInfo {
        selections: metrics.selections,
        cache_hits: metrics.cache_hits,
        cache_misses: metrics.cache_misses,
        refusals: metrics.refusals,
        executions: metrics.executions,
        failures: metrics.failures,
        fallbacks: metrics.fallbacks_total(),
        circuit_openings: metrics.circuit_openings,
        worker_restarts: metrics.worker_restarts,
        // A struct of numbers and texts can always be written.
        json: serde_json::to_string(&metrics).unwrap_or_default(),
        calls: metrics
            .calls
            .into_iter()
            .map(|one| data::CallCount {
                operation: one.operation,
                kernel: one.kernel,
                backend: one.backend,
                count: one.count,
            })
            .collect(),
    }
}

/// The metrics in the OpenMetrics text format.
pub fn engine_metrics_text(engine: &Engine) -> String {
    engine.inner.metrics_text()
}

/// Starts a recording of selections and kernel runs.
pub fn engine_start_recording(engine: &Engine) {
    engine.inner.start_recording();
}

/// Ends the recording and writes it to a file.
pub fn engine_stop_recording(engine: &Engine, path: &str) -> *mut Failure {
    guarded(|| {
        let refuse = |message: String| Error::Configuration {
            subject: path.to_owned(),
            message: message.clone(),
            reasons: vec![Reason::new(ReasonCode::PolicyInvalid).message(message)],
        };
        let text = engine.inner.stop_recording();
        let text = text.ok_or_else(|| refuse("no recording is in progress".to_owned()))?;
        std::fs::write(path, text).map_err(|error| refuse(format!("cannot be written: {error}")))
    })
}
