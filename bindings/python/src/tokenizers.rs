//! Tokenizers beyond files: named encodings, what a tokenizer was made from, and its kernels made ready.

use lz_ops::tokenizer::Tokenizer;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::text::{PyTokenizer, interruptible};

/// The tokenizer of an encoding of tiktoken, from ranks that are compiled in.
#[pyfunction]
fn tokenizer_of_encoding(py: Python<'_>, name: &str) -> PyResult<PyTokenizer> {
    let wanted = name.to_owned();
    match interruptible(py, move || lz_tokenize::encoding(&wanted))? {
        None => Err(PyKeyError::new_err(name.to_owned())),
        Some(made) => made.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string())),
    }
}

/// The tokenizer of an encoding of tiktoken by its own ranks, special tokens and expression, whatever its name.
#[pyfunction]
fn tokenizer_of_ranks(
    py: Python<'_>,
    ranks: Vec<(Vec<u8>, u32)>,
    special: Vec<(String, u32)>,
    expression: &str,
) -> PyResult<PyTokenizer> {
    let ranks = ranks.into_iter().map(|(token, id)| (id, token)).collect();
    let special = special.into_iter().map(|(text, id)| (id, text)).collect();
    let made = py.detach(|| lz_tokenize::encoding_of_ranks(ranks, special, expression));
    made.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The names of those encodings.
#[pyfunction]
fn encoding_names() -> Vec<&'static str> {
    lz_tokenize::ENCODINGS.to_vec()
}

/// What a tokenizer was made from.
#[pyfunction]
fn tokenizer_json<'py>(py: Python<'py>, tokenizer: &Bound<'py, PyTokenizer>) -> Bound<'py, PyBytes> {
    PyBytes::new(py, tokenizer.get().handle().json())
}

/// The tokens that the definition itself gives for a text, whatever is locked or preferred: for proofs.
#[pyfunction]
fn defined_tokens(py: Python<'_>, tokenizer: &Bound<'_, PyTokenizer>, text: &str) -> PyResult<Vec<u32>> {
    let handle = tokenizer.get().handle();
    let tokens = py.detach(|| handle.encode(text, true));
    let tokens = tokens.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(tokens.into_iter().map(|token| token.id).collect())
}

/// Builds the preferred kernel and shows it equal; why it is not, if it is not.
#[pyfunction]
fn prepare_tokenizer(py: Python<'_>, tokenizer: &Bound<'_, PyTokenizer>) -> PyResult<Option<String>> {
    let handle: Tokenizer = tokenizer.get().handle().clone();
    let prepared = interruptible(py, move || lz_tokenize::prepare(&handle))?;
    Ok(prepared.err().map(|reason| reason.to_string()))
}

/// How many calls of a proven kernel are tried against the definition.
#[pyfunction]
fn set_validation_rates(initial: f64, warmup: f64, stable: f64) {
    lz_tokenize::set_rates(lz_tokenize::Rates { initial, warmup, stable });
}

/// Adds them to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tokenizer_of_encoding, module)?)?;
    module.add_function(wrap_pyfunction!(tokenizer_of_ranks, module)?)?;
    module.add_function(wrap_pyfunction!(encoding_names, module)?)?;
    module.add_function(wrap_pyfunction!(tokenizer_json, module)?)?;
    module.add_function(wrap_pyfunction!(defined_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(prepare_tokenizer, module)?)?;
    module.add_function(wrap_pyfunction!(set_validation_rates, module)?)?;
    Ok(())
}
