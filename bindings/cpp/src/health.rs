//! The circuit breakers of an engine as plain data for C++, and their reset.

use lz_core::{Error, Reason, ReasonCode};

use crate::call::{Failure, guarded};
use crate::data;
use crate::engine::Engine;

/// All circuit breakers with recorded failures.
pub fn engine_circuits(engine: &Engine) -> Vec<data::CircuitInfo> {
    let circuits = engine.inner.circuits().into_iter();
    circuits
        .map(|one| data::CircuitInfo {
            scope: one.scope.name().to_owned(),
            name: one.name,
            version: one.version,
            state: one.state.name().to_owned(),
            failures: one.failures,
            openings: one.openings,
            last_error: one.last_error,
            retry_seconds: one.retry_in.map_or(0.0, |wait| wait.as_secs_f64()),
            stored_only: one.stored_only,
        })
        .collect()
}

/// Clears the recorded failures of a kernel or backend, or of all if the name is empty, and returns the number of circuit
/// breakers that were reset.
pub fn engine_reset_kernel(engine: &Engine, name: &str, count: &mut u64) -> *mut Failure {
    guarded(|| {
        let name = (!name.is_empty()).then_some(name);
        let reset = engine.inner.reset_kernel(name).map_err(|why| Error::Configuration {
            subject: "perfdb".to_owned(),
            message: why.to_string(),
            reasons: vec![Reason::new(ReasonCode::PerfdbUnavailable).message(why.to_string())],
        })?;
        *count = reset as u64;
        Ok(())
    })
}
