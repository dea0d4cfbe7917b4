//! Settings, kernel locks, and thread-local policy scopes (`with` blocks).

use std::path::PathBuf;

use lz_engine::policy::layer::SettingInput;
use lz_engine::policy::overlay::Overlay;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use crate::engine::{engine, warn_about_perfdb};
use crate::error::raise;

fn given(key: &str, value: &Bound<'_, PyAny>) -> PyResult<SettingInput> {
    if value.is_instance_of::<PyBool>() {
        return Ok(SettingInput::Bool(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(SettingInput::Int(value.extract()?));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(SettingInput::Float(value.extract()?));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(SettingInput::Text(value.extract()?));
    }
    if let Ok(table) = value.cast::<PyDict>() {
        // A mapping of names to numbers or words, as text.
        let pair = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            Ok(format!("{}: {}", name.extract::<String>()?, value.str()?))
        };
        let pairs: Vec<String> = table.iter().map(pair).collect::<PyResult<_>>()?;
        return Ok(SettingInput::Text(pairs.join(", ")));
    }
    value.extract::<Vec<String>>().map(SettingInput::Texts).map_err(|_| {
        let text =
            format!("{key} must be a bool, a number, a string, a list of strings or a mapping, not {value}");
        PyTypeError::new_err(text)
    })
}

/// Sets values by their keys, all or none of them.
#[pyfunction]
fn configure(py: Python<'_>, values: &Bound<'_, PyDict>) -> PyResult<()> {
    let mut all = Vec::new();
    for (key, value) in values {
        let key: String = key.extract()?;
        let value = given(&key, &value)?;
        all.push((key, value));
    }
    engine()?.configure(all).map_err(|error| raise(py, &error))?;
    warn_about_perfdb(py)
}

/// Reads a policy file.
#[pyfunction]
fn load_config(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    engine()?.load_config(&path).map_err(|error| raise(py, &error))?;
    warn_about_perfdb(py)
}

/// Every setting: key, value, source.
#[pyfunction]
fn config() -> PyResult<Vec<(String, String, String)>> {
    let entries = engine()?.config().into_iter();
    Ok(entries.map(|entry| (entry.key, entry.value, entry.source.to_string())).collect())
}

/// Locks an operation or alias to a kernel.
#[pyfunction]
fn lock(py: Python<'_>, operation: &str, kernel: &str) -> PyResult<()> {
    engine()?.lock(operation, kernel).map_err(|error| raise(py, &error))
}

/// Removes a lock.
#[pyfunction]
fn unlock(py: Python<'_>, operation: &str) -> PyResult<()> {
    engine()?.unlock(operation).map_err(|error| raise(py, &error))
}

/// The policy overlay of a `with` block, for its thread.
#[pyclass(name = "Scope", module = "layerzero", unsendable)]
pub struct PyScope {
    prefer: Vec<String>,
    disabled: bool,
    /// The KV-cache strategy of calls in the block.
    kv_strategy: Option<String>,
    /// Guards that remove their overlay when they are dropped, the last first.
    active: Vec<Box<dyn std::any::Any>>,
}

#[pymethods]
impl PyScope {
    /// Prefers these kernels or backends, runs reference kernels only, or sets the KV-cache strategy.
    #[new]
    #[pyo3(signature = (prefer = Vec::new(), disabled = false, kv_strategy = None))]
    fn new(prefer: Vec<String>, disabled: bool, kv_strategy: Option<String>) -> PyScope {
        PyScope { prefer, disabled, kv_strategy, active: Vec::new() }
    }

    fn __enter__(mut slf: PyRefMut<'_, Self>) -> PyResult<PyRefMut<'_, Self>> {
        let mut overlay = Overlay::new();
        if !slf.prefer.is_empty() {
            overlay = overlay.prefer(&slf.prefer);
        }
        if slf.disabled {
            overlay = overlay.disabled();
        }
        if let Some(strategy) = &slf.kv_strategy {
            let set = overlay.set("kv_cache.strategy", SettingInput::Text(strategy.clone()));
            overlay = set.map_err(|error| raise(slf.py(), &error.into()))?;
        }
        let scope = engine()?.scope(overlay).map_err(|error| raise(slf.py(), &error))?;
        slf.active.push(Box::new(scope));
        Ok(slf)
    }

    fn __exit__(
        &mut self,
        _ty: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        match self.active.pop() {
            Some(_) => Ok(false),
            None => Err(PyRuntimeError::new_err("this scope was not entered")),
        }
    }
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(load_config, module)?)?;
    module.add_function(wrap_pyfunction!(config, module)?)?;
    module.add_function(wrap_pyfunction!(lock, module)?)?;
    module.add_function(wrap_pyfunction!(unlock, module)?)?;
    module.add_class::<PyScope>()
}
