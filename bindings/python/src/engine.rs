//! The process's engine, and what Python may ask it.

use std::sync::OnceLock;

use lz_core::{Engine, EngineBuilder};
use pyo3::prelude::*;
use pyo3::sync::OnceLockExt;

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// What was wrong with the environment when the engine was made.
static PROBLEMS: OnceLock<String> = OnceLock::new();

/// The engine of this process; made on first use.
#[inline]
pub fn engine() -> &'static Engine {
    ENGINE.get().unwrap_or_else(first)
}

/// Making it asks Python, which may let another thread run; that one must not wait here with the interpreter held.
#[cold]
fn first() -> &'static Engine {
    Python::attach(|py| ENGINE.get_or_init_py_attached(py, || make(py)))
}

/// As the environment and `layerzero.yaml` say. With a wrong environment it is made without, works, and says what is wrong.
fn make(py: Python<'_>) -> Engine {
    let torch = torch_version(py);
    let builder = || EngineBuilder::new().operations(lz_ops::OPERATIONS).torch(&torch);
    let engine = builder().from_environment().open().unwrap_or_else(|error| {
        eprintln!("layerzero: {error}");
        PROBLEMS.get_or_init(|| error.to_string());
        builder().open().unwrap_or_default()
    });
    // The lists of our own backends are tested to register; should one not, the others remain.
    for (backend, kernels) in [
        ("reference", lz_ops::reference_kernels::kernels()),
        ("cpu", lz_cpu::kernels()),
        ("tokenize", lz_tokenize::kernels()),
    ] {
        if let Err(error) = engine.register(kernels) {
            eprintln!("layerzero: the {backend} backend is off: {error}");
        }
    }
    engine
}

/// The version of torch, without importing it: measurements depend on it.
fn torch_version(py: Python<'_>) -> String {
    let version =
        || py.import("importlib.metadata")?.call_method1("version", ("torch",))?.extract::<String>();
    version().unwrap_or_default()
}

/// Names of all operations.
#[pyfunction]
fn list_operations() -> Vec<&'static str> {
    engine().registry().operations().map(|operation| operation.name.as_ref()).collect()
}

/// The devices of this machine and the health of the engine, as JSON.
#[pyfunction]
fn state() -> PyResult<String> {
    let found = lz_core::device::discover();
    let health = engine().health().summary();
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
            "circuits_open": health.blocking,
        },
        "problems": PROBLEMS.get(),
        "fallbacks": engine().fallbacks(),
        "cached_decisions": engine().cached_decisions(),
        "generation": engine().generation(),
    });
    Ok(answer.to_string())
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(list_operations, module)?)?;
    module.add_function(wrap_pyfunction!(state, module)?)
}
