//! Tokenizers that are not files: named encodings, their definitions, and preparing their kernels.

use lz_ops::tokenizer::Tokenizer;
use lz_tokenize::{ChatError, ChatTemplates, PausedVerification};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::text::{PyTokenizer, interruptible};
use lz_core::fork::Mutex;

/// The tokenizer of a tiktoken encoding, from compiled-in ranks.
#[pyfunction]
fn tokenizer_of_encoding(py: Python<'_>, name: &str) -> PyResult<PyTokenizer> {
    let encoding = name.to_owned();
    match interruptible(py, move || lz_tokenize::encoding(&encoding))? {
        None => Err(PyKeyError::new_err(name.to_owned())),
        Some(made) => made.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string())),
    }
}

/// The tokenizer of a tiktoken encoding given by its ranks, special tokens and pretokenizer pattern, whatever
/// its name.
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

/// The names of the compiled-in encodings.
#[pyfunction]
fn encoding_names() -> Vec<&'static str> {
    lz_tokenize::ENCODINGS.to_vec()
}

/// The definition that a tokenizer was created from.
#[pyfunction]
fn tokenizer_json<'py>(py: Python<'py>, tokenizer: &Bound<'py, PyTokenizer>) -> Bound<'py, PyBytes> {
    PyBytes::new(py, tokenizer.get().handle().json())
}

/// The tokens that the definition gives for a text, regardless of locks and preferences: the reference for
/// checks.
#[pyfunction]
fn defined_tokens(py: Python<'_>, tokenizer: &Bound<'_, PyTokenizer>, text: &str) -> PyResult<Vec<u32>> {
    let handle = tokenizer.get().handle();
    let tokens = py.detach(|| handle.encode(text, true));
    let tokens = tokens.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(tokens.into_iter().map(|token| token.id).collect())
}

/// Builds the preferred kernel and checks it against the definition; returns why it failed, if it did.
#[pyfunction]
fn prepare_tokenizer(py: Python<'_>, tokenizer: &Bound<'_, PyTokenizer>) -> PyResult<Option<String>> {
    let handle: Tokenizer = tokenizer.get().handle().clone();
    let prepared = interruptible(py, move || lz_tokenize::prepare(&handle))?;
    Ok(prepared.err().map(|reason| reason.to_string()))
}

/// Starts no step of a verification until called with `False`: for tests.
#[pyfunction]
fn pause_verification(py: Python<'_>, paused: bool) {
    static PAUSED: Mutex<Option<PausedVerification>> = Mutex::new(None);
    let hold = py.detach(|| paused.then(lz_tokenize::pause_verification));
    *PAUSED.lock() = hold;
}

/// Fractions of calls of a verified kernel that are checked against the definition.
#[pyfunction]
fn set_validation_rates(initial: f64, warmup: f64, stable: f64) {
    lz_tokenize::set_rates(lz_tokenize::Rates { initial, warmup, stable });
}

fn chat_error(error: &ChatError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The text of a conversation. `variables` is a JSON object with `messages`; `template` a template or its name.
#[pyfunction]
#[pyo3(signature = (tokenizer, variables, template=None))]
fn render_chat(
    py: Python<'_>,
    tokenizer: &Bound<'_, PyTokenizer>,
    variables: &str,
    template: Option<&str>,
) -> PyResult<String> {
    let tokenizer = tokenizer.get();
    py.detach(|| {
        let templates = tokenizer.chat_templates().as_ref().map_err(Clone::clone)?;
        templates.render(variables, template)
    })
    .map_err(|error| chat_error(&error))
}

/// A tokenizer with the chat templates and special tokens of a `tokenizer_config.json`.
#[pyfunction]
fn with_chat_config(tokenizer: &Bound<'_, PyTokenizer>, config: &str) -> PyResult<PyTokenizer> {
    let templates = ChatTemplates::from_config(config).map_err(|error| chat_error(&error))?;
    Ok(tokenizer.get().with_chat(templates))
}

/// A tokenizer from its definition and its chat templates, as pickled.
#[pyfunction]
fn tokenizer_of_parts(py: Python<'_>, json: &str, config: Option<&str>) -> PyResult<PyTokenizer> {
    let json = json.as_bytes().to_vec();
    let read = PyTokenizer::load(py, move || Tokenizer::from_json(&json))?;
    match config {
        Some(config) => {
            Ok(read.with_chat(ChatTemplates::from_config(config).map_err(|error| chat_error(&error))?))
        }
        None => Ok(read),
    }
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tokenizer_of_encoding, module)?)?;
    module.add_function(wrap_pyfunction!(tokenizer_of_ranks, module)?)?;
    module.add_function(wrap_pyfunction!(encoding_names, module)?)?;
    module.add_function(wrap_pyfunction!(tokenizer_json, module)?)?;
    module.add_function(wrap_pyfunction!(defined_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(prepare_tokenizer, module)?)?;
    module.add_function(wrap_pyfunction!(pause_verification, module)?)?;
    module.add_function(wrap_pyfunction!(set_validation_rates, module)?)?;
    module.add_function(wrap_pyfunction!(render_chat, module)?)?;
    module.add_function(wrap_pyfunction!(with_chat_config, module)?)?;
    module.add_function(wrap_pyfunction!(tokenizer_of_parts, module)?)?;
    Ok(())
}
