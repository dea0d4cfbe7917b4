//! The process's engine, and queries of its state.

use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use lz_core::Error;
use lz_core::fork::{Mutex, MutexGuard};
use lz_engine::{Engine, EngineBuilder};
use lz_perfdb::Mode;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::sync::OnceLockExt;

use crate::error::raise;

/// The engine, or the error of opening it. With an invalid configuration file nothing runs, because settings
/// such as isolation are unknown.
static ENGINE: OnceLock<Result<Engine, Error>> = OnceLock::new();

/// Warnings collected when the engine was opened: unknown environment variables, refused plugins.
static PROBLEMS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Connects a new engine with the modules that use this one.
static CONNECT: OnceLock<fn(&Engine)> = OnceLock::new();

/// Sets what is done with the engine when it opens.
pub fn connect_on_open(connect: fn(&Engine)) {
    // A second interpreter sets the same function.
    let _ = CONNECT.set(connect);
}

fn problems() -> MutexGuard<'static, Vec<String>> {
    PROBLEMS.lock()
}

/// The engine of this process, opened on first use. Every use raises the error of invalid settings.
#[inline]
pub fn engine() -> PyResult<&'static Engine> {
    match ENGINE.get() {
        Some(Ok(engine)) => Ok(engine),
        _ => open_engine(),
    }
}

/// The engine, if it is open.
pub fn engine_if_open() -> Option<&'static Engine> {
    ENGINE.get()?.as_ref().ok()
}

/// Opens the engine. That calls into Python, which may let another thread run; that thread must not wait here
/// while it holds the GIL.
#[cold]
fn open_engine() -> PyResult<&'static Engine> {
    Python::attach(|py| {
        let mut opening = None;
        let opened = ENGINE.get_or_init_py_attached(py, || {
            opening = Some(Opening::new());
            // Without `logging`, records go to stderr.
            let _ = py.import("layerzero._logging").and_then(|logging| logging.call_method0("install"));
            open(py)
        });
        if opening.is_some() {
            py.import("layerzero._logging")?.call_method0("start")?;
        }
        // A worker's host has already warned about the same problems.
        if opening.is_some() && !lz_worker::settings::is_worker() {
            let problems = problems().clone();
            problems.iter().try_for_each(|problem| warn(py, problem))?;
        }
        opened.as_ref().map_err(|error| raise(py, error))
    })
}

/// Threads that open the engine and have not finished.
static OPENING: AtomicUsize = AtomicUsize::new(0);

/// While it exists, the interpreter does not shut down (`_stop` of `layerzero/_logging.py`): shutting down would end a daemon thread that
/// runs Python code for the engine inside native code, which aborts the process.
struct Opening;

impl Opening {
    fn new() -> Opening {
        OPENING.fetch_add(1, Ordering::Relaxed);
        Opening
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a thread is opening the engine.
#[pyfunction]
pub fn is_opening() -> bool {
    OPENING.load(Ordering::Relaxed) > 0
}

/// Issues a warning, which a program may turn into an error.
pub fn warn(py: Python<'_>, problem: &str) -> PyResult<()> {
    let text = CString::new(problem.replace('\0', " "))?;
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 2)
}

/// Warns if `perfdb.path` names a file that is not a performance database, after a change of settings.
pub fn warn_about_perfdb(py: Python<'_>) -> PyResult<()> {
    match engine()?.foreign_perfdb() {
        Some(problem) => warn(py, &problem),
        None => Ok(()),
    }
}

/// Opens an engine with the settings of the environment and `layerzero.yaml`, and loads the listed plugins.
fn open(py: Python<'_>) -> Result<Engine, Error> {
    let torch = torch_version(py);
    let builder = EngineBuilder::new()
        .operations(lz_ops::OPERATIONS)
        .operations(lz_primitives::all().iter().copied())
        .torch(&torch);
    let engine = builder.from_environment().warn(|warning| problems().push(warning.to_owned())).open()?;
    if let Some(connect) = CONNECT.get() {
        connect(&engine);
    }
    // A worker measures nothing: its host does.
    if !lz_worker::settings::is_worker() {
        lz_engine::tune::BackgroundTuner::install(&engine);
        lz_engine::verify::install(&engine);
    }
    // Tests check that the built-in backends register; should one fail, the others remain usable.
    for (backend, kernels) in [
        ("reference", lz_ops::reference_kernels::kernels()),
        ("cpu", lz_cpu::kernels()),
        ("reference", lz_primitives::reference_kernels()),
        ("cpu", lz_cpu::primitive_kernels()),
        ("tokenize", lz_tokenize::kernels()),
    ] {
        if let Err(error) = engine.register(kernels) {
            problems().push(format!("the {backend} backend is disabled: {error}"));
        }
    }
    // SAFETY: the operator lists the plugins to load and which are allowed.
    for (path, outcome) in py.detach(|| unsafe { lz_worker::plugins::load_all(&engine) }) {
        if let Err(error) = outcome {
            problems().push(format!("plugins.load: {} was refused: {error}", path.display()));
        }
    }
    Ok(engine)
}

/// Why measurements are not stored, if they are enabled and cannot be.
fn perfdb_problem(engine: &Engine) -> Option<String> {
    let db = engine.perfdb()?;
    match db.status().mode {
        Mode::Closed(reason) => Some(format!("perfdb.path: {}: {reason}", db.path().display())),
        Mode::Writable | Mode::ReadOnly => None,
    }
}

/// The version of torch, without importing it: measurements are specific to it.
fn torch_version(py: Python<'_>) -> String {
    let version =
        || py.import("importlib.metadata")?.call_method1("version", ("torch",))?.extract::<String>();
    version().unwrap_or_default()
}

/// Whether an operation has a function of its own; the primitives of graphs have none.
pub fn is_callable(name: &str) -> bool {
    !lz_primitives::all().iter().any(|primitive| primitive.name == name)
}

/// Names of all operations except the primitives of graphs.
#[pyfunction]
fn list_operations() -> PyResult<Vec<&'static str>> {
    let registry = engine()?.registry();
    let names = registry.operations().map(|operation| operation.name.as_ref());
    Ok(names.filter(|name| is_callable(name)).collect())
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
    problems.extend(engine.unknown_names().iter().map(ToString::to_string));
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
            // A circuit that waits for a probe refuses no calls.
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
    module.add_function(wrap_pyfunction!(is_opening, module)?)?;
    module.add_function(wrap_pyfunction!(state, module)?)
}
