//! The process's engine, and what Python may ask it.

use std::sync::OnceLock;

use lz_core::Engine;
use pyo3::prelude::*;

/// The engine of this process; made on first use.
pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(lz_ops::reference_engine)
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
