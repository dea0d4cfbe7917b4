//! Decisions as files: dispatch tables that are solved ahead of time, and lockfiles of recorded decisions.

use std::ops::ControlFlow;
use std::path::PathBuf;

use lz_core::tensor::Device;
use lz_core::{Context, OperationInfo};
use lz_engine::solver::{Problem, SolveProgress, Work};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::engine::engine;
use crate::error::raise;
use crate::inspect::{context, operation};
use crate::simulate::{DescribedBackend, deciding_engine, has_device, move_to};

/// A call that is described but not made: operation, positional arguments, keywords.
type Call<'py> = (String, Bound<'py, PyTuple>, Bound<'py, PyDict>);

/// The table's text, the number of decided cells, operation and reason of cells without a kernel, and whether
/// it was cancelled.
type Solved = (String, u64, Vec<(String, String)>, bool);

fn contexts(
    py: Python<'_>,
    calls: Vec<Call<'_>>,
    device: Option<Device>,
) -> PyResult<Vec<(&'static OperationInfo, Context)>> {
    let one = |(name, arguments, keywords): Call<'_>| {
        let info = operation(&name)?;
        let mut context = context(py, info, &arguments, Some(&keywords))?;
        if let Some(device) = device {
            move_to(info, &mut context, device);
        }
        Ok((info, context))
    };
    calls.into_iter().map(one).collect()
}

/// Selects kernels ahead of time for calls like these and for the workloads of the named operations, on the host or on `device`.
#[pyfunction]
#[pyo3(signature = (
    model, calls, workloads, ranges, outside_is_error = false, compile = false, on_progress = None, device = None, backends = Vec::new()
))]
#[expect(clippy::too_many_arguments, reason = "Python passes each by its name")]
fn solve<'py>(
    py: Python<'py>,
    model: String,
    calls: Vec<Call<'py>>,
    workloads: Vec<String>,
    ranges: Vec<(String, i64, i64)>,
    outside_is_error: bool,
    compile: bool,
    on_progress: Option<&Bound<'py, PyAny>>,
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
) -> PyResult<Solved> {
    let (engine, device) = deciding_engine(py, device, backends)?;
    let mut works: Vec<Work> =
        contexts(py, calls, device)?.into_iter().map(|(info, context)| Work::new(info, context)).collect();
    let place = device.unwrap_or(Device::HOST);
    let mut holes: Vec<(String, String)> = Vec::new();
    for name in &workloads {
        let info = operation(name)?;
        if place.is_host() || has_device(info) {
            works.extend(Work::of_workloads(info, place).map_err(|error| raise(py, &error))?);
        } else {
            holes.push((name.clone(), "its texts are on the host".to_owned()));
        }
    }
    for (axis, first, last) in &ranges {
        works = works.into_iter().map(|work| work.range(axis, *first..=*last)).collect();
    }
    let problem = Problem { model_id: model, works, outside_is_error, compile };
    let mut progress = |progress: &SolveProgress<'_>| {
        let outcome = on_progress.map_or(Ok(()), |on_progress| {
            on_progress.call1((progress.done, progress.total, progress.operation)).map(drop)
        });
        if outcome.is_err() || py.check_signals().is_err() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let solution = engine.solve(&problem, &mut progress).map_err(|error| raise(py, &error))?;
    holes.extend(solution.holes.into_iter().map(|hole| (hole.operation, hole.why)));
    Ok((solution.text, solution.decided, holes, solution.cancelled))
}

/// Starts or stops recording decisions.
#[pyfunction]
fn record_decisions(on: bool) -> PyResult<()> {
    engine()?.record_decisions(on);
    Ok(())
}

/// The lockfile of the recorded decisions, or of decisions made now for these calls, on their device or on `device`.
#[pyfunction]
#[pyo3(signature = (calls = None, device = None, backends = Vec::new()))]
fn freeze(
    py: Python<'_>,
    calls: Option<Vec<Call<'_>>>,
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
) -> PyResult<String> {
    let Some(calls) = calls else { return Ok(engine()?.freeze().text()) };
    let (engine, device) = deciding_engine(py, device, backends)?;
    let calls = contexts(py, calls, device)?;
    Ok(engine.freeze_calls(&calls).map_err(|error| raise(py, &error))?.text())
}

/// The recorded decisions: operation, context, kernel and kernel version.
#[pyfunction]
fn recorded_decisions() -> PyResult<Vec<(String, String, String, String)>> {
    let lockfile = engine()?.freeze();
    let decisions = lockfile.decisions().map(|one| {
        (one.operation.clone(), one.context.clone(), one.kernel.clone(), one.kernel_version.clone())
    });
    Ok(decisions.collect())
}

/// Compares the recorded decisions with a lockfile: those that differ, locked ones that did not occur, and
/// those that are not locked.
#[pyfunction]
fn verify_lockfile(py: Python<'_>, path: PathBuf) -> PyResult<(Vec<String>, Vec<String>, Vec<String>)> {
    let found = engine()?.verify_lockfile_at(&path).map_err(|error| raise(py, &error))?;
    Ok((found.differing.iter().map(ToString::to_string).collect(), found.unmet, found.unlocked))
}

/// The digest of the recorded decisions, as 64 hexadecimal digits: ranks with equal digests selected the same
/// kernels.
#[pyfunction]
fn decision_digest() -> PyResult<String> {
    let digest = engine()?.decision_digest();
    if digest.is_empty() { Err(PyValueError::new_err("no decisions were recorded")) } else { Ok(digest) }
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(solve, module)?)?;
    module.add_function(wrap_pyfunction!(record_decisions, module)?)?;
    module.add_function(wrap_pyfunction!(freeze, module)?)?;
    module.add_function(wrap_pyfunction!(recorded_decisions, module)?)?;
    module.add_function(wrap_pyfunction!(verify_lockfile, module)?)?;
    module.add_function(wrap_pyfunction!(decision_digest, module)?)
}
