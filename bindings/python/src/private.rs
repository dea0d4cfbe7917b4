//! Whether interfaces without a stability guarantee may be used. `docs/private-interfaces.md` lists them.

use std::sync::OnceLock;

use pyo3::prelude::*;

/// The value `0` disables all of them, so that only published interfaces are used.
const VARIABLE: &str = "LAYERZERO_PRIVATE_INTERFACES";

/// Whether they may be used; the variable is read once.
pub fn allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        // An invalid value disables them, because it may have been meant to; the engine also reports it as an
        // error.
        std::env::var_os(VARIABLE).is_none_or(|value| matches!(value.to_str().map(str::trim), Some("" | "1")))
    })
}

/// Whether interfaces without a stability guarantee may be used.
#[pyfunction]
fn private_interfaces() -> bool {
    allowed()
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(private_interfaces, module)?)
}
