//! Metrics, recordings, and ranges in profiles of torch.

use std::path::PathBuf;
use std::sync::Arc;

use lz_engine::telemetry::Annotate;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::engine::engine;

/// Ranges of `torch.profiler` around kernel runs, if the program has imported torch.
pub struct TorchRanges;

impl TorchRanges {
    /// For the engine.
    pub fn shared() -> Arc<dyn Annotate> {
        Arc::new(TorchRanges)
    }
}

impl Annotate for TorchRanges {
    fn annotate(&self, name: &str, run: &mut dyn FnMut()) {
        // An error of the profiler must not prevent the run.
        let range = Python::attach(|py| begin(py, name).ok().flatten());
        run();
        if let Some(range) = range {
            Python::attach(|py| {
                let none = py.None();
                let _ = range.bind(py).call_method1("__exit__", (&none, &none, &none));
            });
        }
    }
}

/// Enters a range; nothing if torch is not imported.
fn begin(py: Python<'_>, name: &str) -> PyResult<Option<Py<PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?;
    if !modules.contains("torch")? {
        return Ok(None);
    }
    let range = py.import("torch.profiler")?.call_method1("record_function", (name,))?;
    range.call_method0("__enter__")?;
    Ok(Some(range.unbind()))
}

/// All metrics as JSON.
#[pyfunction]
fn metrics(py: Python<'_>) -> PyResult<String> {
    let engine = engine()?;
    let metrics = py.detach(|| engine.metrics());
    serde_json::to_string(&metrics).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// All metrics in the OpenMetrics text format.
#[pyfunction]
fn metrics_text(py: Python<'_>) -> PyResult<String> {
    let engine = engine()?;
    Ok(py.detach(|| engine.metrics_text()))
}

/// Starts a recording.
#[pyfunction]
fn start_recording() -> PyResult<()> {
    engine()?.start_recording();
    Ok(())
}

/// Ends the recording and writes it to a file.
#[pyfunction]
fn stop_recording(path: PathBuf) -> PyResult<()> {
    let Some(text) = engine()?.stop_recording() else {
        return Err(PyRuntimeError::new_err("no recording is in progress; call lz.start_recording() first"));
    };
    Ok(std::fs::write(path, text)?)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(metrics, module)?)?;
    module.add_function(wrap_pyfunction!(metrics_text, module)?)?;
    module.add_function(wrap_pyfunction!(start_recording, module)?)?;
    module.add_function(wrap_pyfunction!(stop_recording, module)?)
}
