//! Which kernels the suite is held against. The list itself is `lz_test_kernels`.

use lz_core::{Error, KernelEntry};
use lz_engine::Engine;

/// The backend whose kernels must answer every stated case; the others may decline one.
pub const REFERENCE_BACKEND: &str = "reference";

/// The kernels of one operation, each alone in an engine, so that no other can answer in its place.
pub fn engines(operation: &str) -> Result<Vec<(&'static KernelEntry, Engine)>, Error> {
    let kernels = lz_test_kernels::runnable().iter().filter(|entry| entry.spec.operation == operation);
    kernels
        .map(|entry| {
            let engine = Engine::new();
            engine.register([entry.clone()])?;
            Ok((entry, engine))
        })
        .collect()
}
