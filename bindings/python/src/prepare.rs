//! What is done before calls come: measuring kernels, and tables that decide beforehand.

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
use crate::engine::engine;
use crate::error::raise;
use crate::inspect::operation;
use crate::plan::Way;
use crate::runtime::perform;

/// The database of measurements.
fn database() -> PyResult<Arc<PerfDb>> {
    engine()?.perfdb().ok_or_else(|| PyValueError::new_err("perfdb.enabled is false"))
}

/// The database, if it can be written: what is measured or pruned must not be lost after the work is done.
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

/// Measures every kernel that could run a call; `told` hears of each sample. Ctrl-C ends it, and what was measured is kept.
#[pyfunction]
#[pyo3(signature = (operation_name, arguments, keywords, samples, told = None))]
fn tune<'py>(
    py: Python<'py>,
    operation_name: &str,
    arguments: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
    samples: u32,
    told: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let info = operation(operation_name)?;
    writable_database()?;
    let mut options = TuneOptions { max_samples: samples.max(1), ..TuneOptions::default() };
    let (tuned, _) = perform(py, Way::Decide, info, arguments, Some(keywords), |frame, context, run_one| {
        let _there = frame.on_its_device();
        if frame.is_asynchronous() {
            // Waiting costs some ten microseconds, so that a sample is as many runs as make that less than kernels differ by.
            options.synchronize = Some(cuda::Waits::shared());
            options.sample_time = Duration::from_millis(3);
            // Such a sample is a turn; and whoever waits for a device leaves it to others.
            options.turn_time = Duration::ZERO;
        }
        let mut tell = |progress: &Progress<'_>| {
            let heard = match (progress, told) {
                (Progress::Sampled { kernel, ns, done, max }, Some(told)) => {
                    told.call1((*kernel, *ns, *done, *max)).map(drop)
                }
                _ => Ok(()),
            };
            // A signal, and an exception of whoever is told, end the measuring.
            if heard.is_err() || py.check_signals().is_err() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let mut run = |entry: &lz_core::KernelEntry, run: &mut lz_core::Run<'_>| run_one(frame, entry, run);
        let tuned = engine()?.tune(info, context, &options, &mut run, &mut tell);
        match frame.take_interruption() {
            // Ctrl-C ends the measuring wherever it arrives; any other such exception is the caller's.
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

/// Uses a dispatch table from now on; says what it is as JSON.
#[pyfunction]
fn load_dispatch_table(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let state = engine()?.load_dispatch_table(&path).map_err(|error| raise(py, &error))?;
    serde_json::to_string(&state).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Kernel, operation, dtypes, median and 95th percentile in nanoseconds, samples, whether it still counts.
type Row = (String, String, String, f64, f64, u64, bool);

/// Measurements that are kept.
#[pyfunction]
#[pyo3(signature = (operation_name = None, kernel = None, limit = 1000))]
fn perfdb_show(operation_name: Option<String>, kernel: Option<String>, limit: usize) -> PyResult<Vec<Row>> {
    let filter = Filter { operation: operation_name, kernel, ..Filter::default() };
    let rows = database()?.show(&filter, limit);
    Ok(rows
        .into_iter()
        .map(|row| {
            let timing = row.timing;
            let samples = timing.samples;
            (
                row.key.kernel,
                row.key.operation,
                row.key.dtypes,
                timing.median_ns,
                timing.p95_ns,
                samples,
                row.valid,
            )
        })
        .collect())
}

/// Writes measurements to a file, one JSON object a line; says how many.
#[pyfunction]
fn perfdb_export(path: PathBuf) -> PyResult<u64> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let done = database()?.export(&Filter::default(), &mut file);
    done.map(|exported| exported.measurements as u64).map_err(|error| PyOSError::new_err(error.to_string()))
}

/// Reads measurements from a file; says how many were taken.
#[pyfunction]
fn perfdb_import(path: PathBuf) -> PyResult<u64> {
    let report = database()?.import_file(&path);
    let report = report.map_err(|error| PyValueError::new_err(format!("{}: {error}", path.display())))?;
    engine()?.refresh_evidence();
    Ok(report.stored as u64)
}

/// Deletes measurements; says how many.
#[pyfunction]
#[pyo3(signature = (operation_name = None, kernel = None))]
fn perfdb_prune(operation_name: Option<String>, kernel: Option<String>) -> PyResult<usize> {
    let filter = Filter { operation: operation_name, kernel, ..Filter::default() };
    let gone = writable_database()?.prune(&filter).map_err(|error| PyOSError::new_err(error.to_string()))?;
    engine()?.refresh_evidence();
    Ok(gone)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tune, module)?)?;
    module.add_function(wrap_pyfunction!(load_dispatch_table, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_show, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_export, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_import, module)?)?;
    module.add_function(wrap_pyfunction!(perfdb_prune, module)?)
}
