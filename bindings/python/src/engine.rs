//! The process's engine, and what Python may ask it.

use std::sync::OnceLock;

use lz_core::{Engine, Error, Reason, ReasonCode};
use pyo3::prelude::*;

/// The engine of this process; made on first use.
pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let engine = lz_ops::reference_engine();
        // The lists of our own backends are tested to register; should one not, the references remain.
        if let Err(error) = engine.register(lz_cpu::kernels()) {
            eprintln!("layerzero: the cpu backend is off: {error}");
        }
        if let Err(error) = follow_environment(&engine) {
            eprintln!("layerzero: {error}");
            PROBLEMS.get_or_init(|| error.to_string());
        }
        engine
    })
}

/// Where measurements are kept, if they are.
pub fn database_path() -> Option<std::path::PathBuf> {
    let on = engine().setting("perfdb.enabled").map(|setting| setting.value.to_string());
    let path = engine().setting("perfdb.path").map(|setting| setting.value.to_string())?;
    if on.as_deref() != Some("true") {
        return None;
    }
    Some(match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    })
}

/// What was wrong with the environment when the engine was made.
static PROBLEMS: OnceLock<String> = OnceLock::new();

/// Reads `LAYERZERO_*`, and the file that it names. An engine with a wrong environment works, and says what is wrong.
fn follow_environment(engine: &Engine) -> Result<(), Error> {
    if !std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with("LAYERZERO_")) {
        return Ok(());
    }
    let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let environment = lz_core::policy::env::read(variables, &engine.vocabulary()).map_err(|report| {
        let reason = Reason::new(ReasonCode::PolicyInvalid).message(report.to_string());
        Error::Configuration {
            subject: "environment".to_owned(),
            message: report.to_string(),
            reasons: vec![reason],
        }
    })?;
    engine.settings().set_environment(&environment);
    match &environment.config {
        Some(path) => engine.load_config(std::path::Path::new(path)),
        None => Ok(()),
    }
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
