//! Work ahead of calls: tuning (measuring kernels), trial captures, dispatch tables, and the performance database.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lz_engine::tune::{Outcome, Progress, TuneOptions};
use lz_perfdb::{Filter, Mode, PerfDb};
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::cuda;
use crate::dynamic_call::perform;
use crate::engine::engine;
use crate::error::{raise, system_error};
use crate::inspect::{context, operation};
use crate::selection::Selection;

/// The performance database.
pub fn database() -> PyResult<Arc<PerfDb>> {
    engine()?
        .perfdb()
        .ok_or_else(|| PyValueError::new_err("the performance database is disabled: perfdb.enabled is false"))
}

/// The performance database, if it is writable: checked before measuring or pruning, so that no work is lost.
fn writable_database() -> PyResult<Arc<PerfDb>> {
    let db = database()?;
    db.retry();
    let why = match db.status().mode {
        Mode::Writable => return Ok(db),
        Mode::ReadOnly => "it is read-only".to_owned(),
        Mode::Closed(reason) => reason.to_string(),
    };
    let message = format!("perfdb.path: {} cannot be written: {why}", db.path().display());
    Err(PyOSError::new_err(message))
}

/// Measures every kernel that can run a call; `on_progress` is called with each sample. Ctrl-C stops it, and
/// finished measurements are stored.
#[pyfunction]
#[pyo3(signature = (operation_name, arguments, keywords, samples, on_progress = None))]
fn tune<'py>(
    py: Python<'py>,
    operation_name: &str,
    arguments: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
    samples: u32,
    on_progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let info = operation(operation_name)?;
    writable_database()?;
    let mut options = TuneOptions { max_samples: samples.max(1), ..TuneOptions::default() };
    let (tuned, _) =
        perform(py, Selection::Select, info, arguments, Some(keywords), |frame, context, run_one| {
            let _device = frame.enter_device();
            if frame.is_asynchronous() {
                // Synchronizing costs about ten microseconds, so a sample is enough runs to make that small
                // compared with the difference between kernels.
                options.synchronize = Some(cuda::StreamSynchronizer::shared());
                options.sample_time = Duration::from_millis(3);
                // Each sample is a turn of its own: while this thread waits for the device, others may use it.
                options.turn_time = Duration::ZERO;
            }
            let mut report = |progress: &Progress<'_>| {
                let outcome = match (progress, on_progress) {
                    (Progress::Sampled { kernel, ns, done, max }, Some(on_progress)) => {
                        on_progress.call1((*kernel, *ns, *done, *max)).map(drop)
                    }
                    _ => Ok(()),
                };
                // A signal, or an exception of the progress callback, stops the measurement.
                if outcome.is_err() || py.check_signals().is_err() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let mut run =
                |entry: &lz_core::KernelEntry, run: &mut lz_core::Run<'_>| run_one(frame, entry, run);
            let tuned = engine()?.tune(info, context, &options, &mut run, &mut report);
            match frame.take_interruption() {
                // Ctrl-C stops the measurement at any point; other such exceptions go to the caller.
                Some(error) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => Err(error),
                _ => tuned.map_err(|error| raise(py, &error)),
            }
        })?;
    let answer = PyDict::new(py);
    answer.set_item("operation", operation_name)?;
    answer.set_item("best", tuned.best())?;
    answer.set_item("settled", tuned.settled)?;
    answer.set_item("cancelled", tuned.cancelled)?;
    let lost = match &tuned.kept {
        Some(Ok(())) => None,
        Some(Err(reason)) => Some(reason.to_string()),
        None => Some("there is no performance database".to_owned()),
    };
    answer.set_item("kept", lost.is_none())?;
    answer.set_item("lost", lost)?;
    let mut kernels = Vec::new();
    for (id, outcome) in &tuned.kernels {
        let one = PyDict::new(py);
        one.set_item("kernel", id)?;
        let why = match outcome {
            Outcome::Measured(timing) => {
                one.set_item("median_ns", timing.median_ns)?;
                one.set_item("p95_ns", timing.p95_ns)?;
                one.set_item("samples", timing.samples)?;
                None
            }
            Outcome::Failed(reason) => Some(reason.to_string()),
            Outcome::Passed(reasons) => {
                let all: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                Some(all.join("; "))
            }
            Outcome::Untouched => None,
        };
        one.set_item("state", outcome.state())?;
        one.set_item("why", why)?;
        kernels.push(one);
    }
    answer.set_item("kernels", kernels)?;
    Ok(answer)
}

/// Loads a dispatch table and uses it from now on; returns its state as JSON.
#[pyfunction]
fn load_dispatch_table(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let state = engine()?.load_dispatch_table(&path).map_err(|error| raise(py, &error))?;
    serde_json::to_string(&state).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Kernel, operation, sizes, dtypes, median and 95th percentile in nanoseconds, samples, whether it is still valid.
type Row = (String, String, String, String, f64, f64, u64, bool);

/// Stored measurements.
#[pyfunction]
#[pyo3(signature = (operation_name = None, kernel = None, limit = 1000))]
fn perfdb_show(operation_name: Option<String>, kernel: Option<String>, limit: usize) -> PyResult<Vec<Row>> {
    let filter = Filter { operation: operation_name, kernel, ..Filter::default() };
    let rows = database()?.show(&filter, limit);
    let registry = engine()?.registry();
    Ok(rows
        .into_iter()
        .map(|row| {
            let timing = row.timing;
            let samples = timing.samples;
            let bucket = row.key.bucket.to_string();
            // Operations that are not registered here have no names for their sizes.
            let sizes = match registry.operation(&row.key.operation) {
                Some(operation) => lz_serve::bucket_text(operation, &bucket),
                None => bucket,
            };
            (
                row.key.kernel,
                row.key.operation,
                sizes,
                row.key.dtypes,
                timing.median_ns,
                timing.p95_ns,
                samples,
                row.valid,
            )
        })
        .collect())
}

/// Writes measurements to a file, one JSON object per line; returns how many.
#[pyfunction]
fn perfdb_export(path: PathBuf) -> PyResult<u64> {
    let file = std::fs::File::create(&path).map_err(|error| system_error(path.display(), &error))?;
    let mut file = std::io::BufWriter::new(file);
    let done = database()?.export(&Filter::default(), &mut file);
    done.map(|exported| exported.measurements as u64).map_err(|error| PyOSError::new_err(error.to_string()))
}

/// Imports measurements from a file; returns how many were stored.
#[pyfunction]
fn perfdb_import(path: PathBuf) -> PyResult<u64> {
    let report = database()?.import_file(&path);
    let report = report.map_err(|error| PyValueError::new_err(format!("{}: {error}", path.display())))?;
    engine()?.refresh_evidence();
    Ok(report.stored as u64)
}

/// Deletes measurements; returns how many.
#[pyfunction]
#[pyo3(signature = (operation_name = None, kernel = None))]
fn perfdb_prune(operation_name: Option<String>, kernel: Option<String>) -> PyResult<usize> {
    let filter = Filter { operation: operation_name, kernel, ..Filter::default() };
    let gone = writable_database()?.prune(&filter).map_err(|error| PyOSError::new_err(error.to_string()))?;
    engine()?.refresh_evidence();
    Ok(gone)
}

/// Records that a kernel survived a trial capture of calls like this one; with `graph_strict_mode` only such
/// calls are captured.
#[pyfunction]
fn mark_captured<'py>(
    py: Python<'py>,
    kernel: &str,
    operation_name: &str,
    arguments: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
) -> PyResult<()> {
    let info = operation(operation_name)?;
    let context = context(py, info, arguments, Some(keywords))?;
    engine()?.mark_captured(kernel, info, &context);
    Ok(())
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tune, module)?)?;
    module.add_function(wrap_pyfunction!(mark_captured, module)?)?;
    module.add_function(wrap_pyfunction!(load_dispatch_table, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_show, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_export, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_import, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_prune, module)?)
}
