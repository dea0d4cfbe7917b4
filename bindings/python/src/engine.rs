//! The process's engine, and what Python may ask it.

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use lz_core::Error;
use lz_engine::{Engine, EngineBuilder};
use lz_perfdb::Mode;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::sync::OnceLockExt;

use crate::error::raise;

/// The engine, or why there is none: what a wrong file asks for, isolation above all, cannot be known, so nothing runs.
static ENGINE: OnceLock<Result<Engine, Error>> = OnceLock::new();

/// What was suspicious when the engine was opened: unknown variables, plugins that were refused.
static PROBLEMS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn problems() -> MutexGuard<'static, Vec<String>> {
    PROBLEMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine of this process; opened on first use. Settings that are wrong are the error of every use.
#[inline]
pub fn engine() -> PyResult<&'static Engine> {
    match ENGINE.get() {
        Some(Ok(engine)) => Ok(engine),
        _ => first(),
    }
}

/// The engine, if one was opened.
pub fn opened() -> Option<&'static Engine> {
    ENGINE.get()?.as_ref().ok()
}

/// Opening asks Python, which may let another thread run; that one must not wait here with the interpreter held.
#[cold]
fn first() -> PyResult<&'static Engine> {
    Python::attach(|py| {
        let mut fresh = false;
        let opened = ENGINE.get_or_init_py_attached(py, || {
            fresh = true;
            open(py)
        });
        // The host of a worker has said the same.
        if fresh && !lz_worker::settings::is_worker() {
            let problems = problems().clone();
            problems.iter().try_for_each(|problem| warn(py, problem))?;
        }
        opened.as_ref().map_err(|error| raise(py, error))
    })
}

/// Says what is suspicious as a warning, which a program may turn into an error.
pub fn warn(py: Python<'_>, problem: &str) -> PyResult<()> {
    let text = CString::new(problem.replace('\0', " "))?;
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 2)
}

/// Warns if `perfdb.path` names a file that is not ours, after a change of settings.
pub fn warn_about_perfdb(py: Python<'_>) -> PyResult<()> {
    match engine()?.foreign_perfdb() {
        Some(problem) => warn(py, &problem),
        None => Ok(()),
    }
}

/// As the environment and `layerzero.yaml` say, with the plugins that are listed there.
fn open(py: Python<'_>) -> Result<Engine, Error> {
    let torch = torch_version(py);
    let builder = EngineBuilder::new().operations(lz_ops::OPERATIONS).torch(&torch);
    let engine = builder.from_environment().warn(|warning| problems().push(warning.to_owned())).open()?;
    // The lists of our own backends are tested to register; should one not, the others remain.
    for (backend, kernels) in [
        ("reference", lz_ops::reference_kernels::kernels()),
        ("cpu", lz_cpu::kernels()),
        ("tokenize", lz_tokenize::kernels()),
    ] {
        if let Err(error) = engine.register(kernels) {
            problems().push(format!("the {backend} backend is off: {error}"));
        }
    }
    // SAFETY: the operator lists what is loaded and says what may be.
    for (path, outcome) in py.detach(|| unsafe { lz_worker::plugins::load_all(&engine) }) {
        if let Err(error) = outcome {
            problems().push(format!("plugins.load: {} was refused: {error}", path.display()));
        }
    }
    Ok(engine)
}

/// Why measurements are not kept now, if they are wanted and cannot be.
fn perfdb_problem(engine: &Engine) -> Option<String> {
    let db = engine.perfdb()?;
    match db.status().mode {
        Mode::Closed(reason) => Some(format!("perfdb.path: {}: {reason}", db.path().display())),
        Mode::Writable | Mode::ReadOnly => None,
    }
}

/// The version of torch, without importing it: measurements depend on it.
fn torch_version(py: Python<'_>) -> String {
    let version =
        || py.import("importlib.metadata")?.call_method1("version", ("torch",))?.extract::<String>();
    version().unwrap_or_default()
}

/// Names of all operations.
#[pyfunction]
fn list_operations() -> PyResult<Vec<&'static str>> {
    Ok(engine()?.registry().operations().map(|operation| operation.name.as_ref()).collect())
}

/// Operations whose tensors can be on a platform and that no usable kernel of it serves.
#[pyfunction]
fn operations_without_kernel(platform: &str) -> PyResult<Vec<&'static str>> {
    let platform: lz_core::device::Platform =
        platform.parse().map_err(|error| pyo3::exceptions::PyValueError::new_err(format!("{error}")))?;
    Ok(engine()?.registry().operations_without_kernel(platform))
}

/// The devices of this machine and the health of the engine, as JSON.
#[pyfunction]
fn state() -> PyResult<String> {
    let found = lz_device::discover();
    let engine = engine()?;
    let health = engine.health().summary();
    let mut problems = problems().clone();
    problems.extend(
        perfdb_problem(engine).filter(|problem| !problems.iter().any(|known| known.contains(problem))),
    );
    let devices = serde_json::to_value(&found.devices).map_err(|error| {
        pyo3::exceptions::PyValueError::new_err(format!("devices cannot be written as JSON: {error}"))
    })?;
    let answer = serde_json::json!({
        "devices": devices,
        "absent": found.absent.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "health": {
            "level": format!("{:?}", health.level),
            "score": health.score,
            "circuits_tracked": health.tracked,
            // One that waits for a probe refuses nothing.
            "circuits_open": engine.health().circuits().iter().filter(|one| one.refuses()).count(),
        },
        "problems": problems,
        "fallbacks": engine.fallbacks(),
        "cached_decisions": engine.cached_decisions(),
        "generation": engine.generation(),
    });
    Ok(answer.to_string())
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(list_operations, module)?)?;
    module.add_function(wrap_pyfunction!(operations_without_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(state, module)?)
}
