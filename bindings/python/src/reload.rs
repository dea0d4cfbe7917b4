//! Reload: plugins that replace others, kernel versions side by side, watched policy files, readiness.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lz_core::device::Platform;
use lz_engine::reload::{Outcome, Reload};
use lz_worker::plugins::{Install, LoadedPlugin};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::engine::{engine, is_callable};
use crate::error::raise;

fn load_as(py: Python<'_>, path: &Path, install: Install) -> PyResult<LoadedPlugin> {
    let engine = engine()?;
    // SAFETY: the operator's settings list what may be loaded, and the caller requests it.
    let loaded = py.detach(|| unsafe { lz_worker::plugins::load_as(engine, path, install) });
    loaded.map_err(|error| raise(py, &error))
}

/// Loads other versions of registered kernels next to them: as `load_plugin`.
#[pyfunction]
fn load_plugin_alongside(py: Python<'_>, path: PathBuf) -> PyResult<(String, Vec<String>, Option<String>)> {
    let loaded = load_as(py, &path, Install::Alongside)?;
    Ok((loaded.backend, loaded.kernels, loaded.runs_in))
}

/// Replaces the kernels of a backend by those of a new plugin, after a trial.
#[pyfunction]
fn reload_plugin<'py>(py: Python<'py>, path: PathBuf, drain_seconds: f64) -> PyResult<Bound<'py, PyDict>> {
    let patience = Duration::try_from_secs_f64(drain_seconds)
        .map_err(|error| PyValueError::new_err(format!("drain_seconds: {error}")))?;
    let loaded = load_as(py, &path, Install::Replace(patience))?;
    let replacement = loaded.replacement.unwrap_or_default();
    let found = PyDict::new(py);
    found.set_item("backend", loaded.backend)?;
    found.set_item("version", loaded.version)?;
    found.set_item("kernels", loaded.kernels)?;
    found.set_item("runs_in", loaded.runs_in)?;
    found.set_item("replaced", replacement.replaced)?;
    found.set_item("compared_calls", replacement.trial.compared)?;
    found.set_item("untried", replacement.trial.untried)?;
    found.set_item("unloaded", replacement.is_drained)?;
    Ok(found)
}

/// Backend, version, hash, kernels, number of compared calls, kernels that could not be tried.
type CheckedPlugin = (String, String, String, Vec<String>, usize, Vec<String>);

/// Loads a plugin, tries its kernels and unloads it: its backend, version, hash, kernels, the number of compared calls, and
/// the kernels that could not be tried.
#[pyfunction]
fn check_plugin(py: Python<'_>, path: PathBuf) -> PyResult<CheckedPlugin> {
    let engine = engine()?;
    // SAFETY: as above.
    let checked = py.detach(|| unsafe { lz_worker::plugins::check(engine, &path) });
    let (loaded, trial) = checked.map_err(|error| raise(py, &error))?;
    Ok((loaded.backend, loaded.version, loaded.sha256, loaded.kernels, trial.compared, trial.untried))
}

/// Every canary as a dictionary.
#[pyfunction]
fn canaries(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let all = PyList::empty(py);
    for one in engine()?.canaries() {
        let row = PyDict::new(py);
        row.set_item("kernel", one.kernel)?;
        row.set_item("percent", one.percent)?;
        row.set_item("state", one.state)?;
        row.set_item("why", one.why)?;
        row.set_item("calls", one.totals.calls)?;
        row.set_item("compared", one.totals.compared)?;
        row.set_item("mismatches", one.totals.mismatches)?;
        row.set_item("errors", one.totals.errors)?;
        row.set_item("median_ns", one.median_ns)?;
        row.set_item("stable_median_ns", one.stable_median_ns)?;
        row.set_item("problem", one.problem)?;
        all.append(row)?;
    }
    Ok(all)
}

/// Routes all calls of a kernel to a version.
#[pyfunction]
fn promote_version(py: Python<'_>, version: &str) -> PyResult<()> {
    engine()?.promote_version(version).map_err(|error| raise(py, &error))
}

/// Routes no more calls to a version.
#[pyfunction]
fn roll_back_version(py: Python<'_>, version: &str) -> PyResult<()> {
    engine()?.roll_back_version(version).map_err(|error| raise(py, &error))
}

/// Whether calls can be served on these platforms: the name of each check, whether it passed, and what was found.
#[pyfunction]
fn readiness(py: Python<'_>, platforms: Vec<String>) -> PyResult<Vec<(&'static str, bool, String)>> {
    let parsed = platforms.iter().map(|name| name.parse::<Platform>());
    let checked: Result<Vec<Platform>, _> = parsed.collect();
    let checked = checked.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let engine = engine()?;
    let found = py.detach(|| engine.readiness_of(&checked, &is_callable));
    Ok(found.checks.into_iter().map(|one| (one.name, one.ok, one.detail)).collect())
}

/// A watched policy file.
#[pyclass(module = "layerzero", frozen)]
pub struct FileWatch(Mutex<Option<Reload>>);

#[pymethods]
impl FileWatch {
    /// Watches a file; the callback receives every outcome and its message, on a thread of its own.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, callback: Py<PyAny>) -> PyResult<FileWatch> {
        let notify = move |outcome: Outcome| {
            let (state, message) = match outcome {
                Outcome::Applied => ("applied", String::new()),
                Outcome::Unchanged => ("unchanged", String::new()),
                Outcome::Refused(message) => ("refused", message),
                Outcome::Unreadable(message) => ("unreadable", message),
            };
            // An interpreter that shuts down receives nothing any more.
            Python::try_attach(|py| {
                if let Err(error) = callback.call1(py, (state, message)) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            });
        };
        let engine = engine()?;
        let watch = py.detach(|| engine.watch_config(&path, notify));
        let watch = watch.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(FileWatch(Mutex::new(Some(watch))))
    }

    /// Stops watching.
    fn close(&self, py: Python<'_>) {
        let watch = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The callback may be waiting for the interpreter.
        py.detach(|| drop(watch));
    }

    /// Whether the file is watched.
    fn is_open(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let watch = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if watch.is_some() {
            Python::attach(|py| py.detach(|| drop(watch)));
        }
    }
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(load_plugin_alongside, module)?)?;
    module.add_function(wrap_pyfunction!(reload_plugin, module)?)?;
    module.add_function(wrap_pyfunction!(check_plugin, module)?)?;
    module.add_function(wrap_pyfunction!(canaries, module)?)?;
    module.add_function(wrap_pyfunction!(promote_version, module)?)?;
    module.add_function(wrap_pyfunction!(roll_back_version, module)?)?;
    module.add_function(wrap_pyfunction!(readiness, module)?)?;
    module.add_class::<FileWatch>()
}
