//! Whether interfaces that their owners do not promise may be used. `docs/private-interfaces.md` lists them.

use std::sync::OnceLock;

use pyo3::prelude::*;

use crate::tensor::torch;

/// Turns all of them off with `0`, so that only published interfaces are used.
const VARIABLE: &str = "LAYERZERO_PRIVATE_INTERFACES";

/// Whether they may be used; the variable is read once.
pub fn allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        // What is not understood must not turn on what it may have been meant to turn off; the engine refuses it besides.
        std::env::var_os(VARIABLE).is_none_or(|value| matches!(value.to_str().map(str::trim), Some("" | "1")))
    })
}

/// Whether interfaces that their owners do not promise may be used.
#[pyfunction]
fn private_interfaces() -> bool {
    allowed()
}

/// The interfaces of torch that are in use, once a tensor was read: `exchange` (DLPack's functions of the type), `stable` (torch's
/// stable C interface), `is_neg` (a function of torch's library that is not promised).
#[pyfunction]
fn torch_interfaces(py: Python<'_>) -> Vec<&'static str> {
    torch::interfaces(py)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(torch_interfaces, module)?)?;
    module.add_function(wrap_pyfunction!(private_interfaces, module)?)
}
