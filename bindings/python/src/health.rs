//! Circuit breakers of the engine: listing and resetting them.

use lz_engine::health::CircuitReport;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::engine::engine;

fn dictionary<'py>(py: Python<'py>, circuit: CircuitReport) -> PyResult<Bound<'py, PyDict>> {
    let one = PyDict::new(py);
    let refuses = circuit.refuses();
    one.set_item("scope", circuit.scope.name())?;
    one.set_item("name", circuit.name)?;
    one.set_item("version", circuit.version)?;
    one.set_item("bucket", circuit.bucket)?;
    one.set_item("state", circuit.state.name())?;
    one.set_item("refuses", refuses)?;
    one.set_item("failures", circuit.failures)?;
    one.set_item("openings", circuit.openings)?;
    one.set_item("last_error", circuit.last_error)?;
    one.set_item("retry_seconds", circuit.retry_in.map(|wait| wait.as_secs_f64()))?;
    one.set_item("quarantined", circuit.quarantined)?;
    one.set_item("stored_only", circuit.stored_only)?;
    Ok(one)
}

/// Every circuit with recorded failures.
#[pyfunction]
fn circuits(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let all = PyList::empty(py);
    let engine = engine()?;
    for circuit in py.detach(|| engine.circuits()) {
        all.append(dictionary(py, circuit)?)?;
    }
    Ok(all)
}

/// Resets the circuits of a kernel or backend, or all of them; returns how many were reset.
#[pyfunction]
#[pyo3(signature = (name = None))]
fn reset_kernel(py: Python<'_>, name: Option<&str>) -> PyResult<usize> {
    let engine = engine()?;
    py.detach(|| engine.reset_kernel(name)).map_err(|why| PyOSError::new_err(why.to_string()))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(circuits, module)?)?;
    module.add_function(wrap_pyfunction!(reset_kernel, module)?)
}
