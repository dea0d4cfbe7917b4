//! The process's engine, and what Python may ask it.

use std::sync::OnceLock;

use lz_core::Engine;
use pyo3::prelude::*;

/// The engine of this process; made on first use.
pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let engine = lz_ops::reference_engine();
        // The lists of our own backends are tested to register; should one not, the references remain.
        if let Err(error) = engine.register(lz_cpu::kernels()) {
            eprintln!("layerzero: the cpu backend is off: {error}");
        }
        engine
    })
}

/// Names of all operations.
#[pyfunction]
fn list_operations() -> Vec<&'static str> {
    lz_ops::OPERATIONS.iter().map(|operation| operation.name.as_ref()).collect()
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(list_operations, module)?)
}
