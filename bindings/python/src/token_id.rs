//! Token ids that callers pass.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The name of an object's type.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// A token id, as a type that can hold the numbers up to `max`.
pub fn token_id<T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>>(
    object: &Bound<'_, PyAny>,
    max: u64,
) -> PyResult<T> {
    object.extract::<T>().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(object.py()) {
            PyValueError::new_err(format!("a token id is an integer from 0 to {max}, not {object}"))
        } else {
            PyTypeError::new_err(format!("a token id is an integer, not {}", type_name(object)))
        }
    })
}
