//! Metrics and recordings for C++.

use std::path::Path;
use std::time::Duration;

use lz_core::{Error, Reason, ReasonCode};
use lz_engine::verify::Reproducer;

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

/// Waits until every sampled call so far is verified; false after the timeout.
pub fn engine_wait_for_verification(engine: &Engine, seconds: f64) -> bool {
    let timeout = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(365 * 24 * 3600));
    engine.inner.wait_for_verification(timeout)
}

/// Replays a reproducer; the result is JSON.
pub fn engine_replay(engine: &Engine, path: &str, replay: &mut String) -> *mut Failure {
    guarded(|| {
        let reproducer = Reproducer::load(Path::new(path)).map_err(|error| {
            let message = error.to_string();
            let reasons = vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())];
            Error::Configuration { subject: path.to_owned(), message, reasons }
        })?;
        let replayed = engine.inner.replay(&reproducer)?;
        *replay = serde_json::to_string(&replayed).unwrap_or_default();
        Ok(())
    })
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
