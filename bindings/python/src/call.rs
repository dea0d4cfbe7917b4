//! What every generated function does around its call: enums from strings, and the decision to release the interpreter lock.

use lz_core::{Engine, Error, OperationInfo, Reason, ReasonCode};
use pyo3::prelude::*;

use crate::error::refuse;

/// The number of an enum case by its spelling.
pub fn case(
    py: Python<'_>,
    operation: &OperationInfo,
    param: &str,
    names: &[&str],
    text: &str,
) -> PyResult<u32> {
    match names.iter().position(|name| *name == text) {
        Some(position) => Ok(position as u32),
        None => {
            let reason = Reason::new(ReasonCode::ParamType)
                .argument(param)
                .required(format!("one of {}", names.join(", ")))
                .found(format!("{text:?}"));
            Err(refuse(py, &operation.name, reason))
        }
    }
}

/// Elements above which a call is worth releasing the lock for; releasing and taking it costs about as much as touching this many.
const WORTH_RELEASING: i64 = 4096;

/// Runs a call, without the lock if it is long enough.
pub fn run(
    py: Python<'_>,
    elements: i64,
    call: impl FnOnce(&Engine) -> Result<(), Error> + Send,
) -> PyResult<()> {
    let engine = crate::engine::engine();
    let outcome = if elements >= WORTH_RELEASING { py.detach(|| call(engine)) } else { call(engine) };
    outcome.map_err(|error| crate::error::raise(py, &error))
}
