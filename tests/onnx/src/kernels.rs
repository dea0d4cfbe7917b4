//! The kernels under test. The list itself is `lz_test_kernels`.

use lz_core::{Error, KernelEntry};
use lz_engine::Engine;

/// The backend whose kernels must support every mapped case; others may reject one.
pub const REFERENCE_BACKEND: &str = "reference";

/// One engine per kernel of an operation, so that no other kernel can run.
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
