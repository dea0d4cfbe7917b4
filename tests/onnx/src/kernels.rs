//! Which kernels the suite is held against. A backend joins by adding its kernels to [`all`].

use lz_core::{Engine, Error, KernelEntry};
use std::sync::OnceLock;

/// The backend whose kernels must answer every stated case; the others may decline one.
pub const REFERENCE_BACKEND: &str = "reference";

/// Every kernel of every backend.
fn all() -> &'static [KernelEntry] {
    static KERNELS: OnceLock<Vec<KernelEntry>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let mut kernels = lz_ops::reference_kernels::kernels();
        kernels.extend(lz_cpu::kernels());
        kernels
    })
}

/// The kernels of one operation, each alone in an engine, so that no other can answer in its place.
pub fn engines(operation: &str) -> Result<Vec<(&'static KernelEntry, Engine)>, Error> {
    let kernels = all().iter().filter(|entry| entry.spec.operation == operation);
    kernels
        .map(|entry| {
            let engine = Engine::new();
            engine.register([entry.clone()])?;
            Ok((entry, engine))
        })
        .collect()
}
