//! This module as a library of custom operations of ONNX Runtime, which run on the process's engine.

use lz_engine::Engine;
use pyo3::prelude::*;

use crate::engine::engine;

fn open() -> Result<Engine, String> {
    engine().cloned().map_err(|error| error.to_string())
}

/// The op types with their inputs, outputs and attributes, and the operations that are refused, as JSON.
#[pyfunction]
fn onnxruntime_operations() -> String {
    lz_onnxruntime::catalog::describe().to_string()
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    lz_onnxruntime::use_engine(open);
    module.add_function(wrap_pyfunction!(onnxruntime_operations, module)?)
}
