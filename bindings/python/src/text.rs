//! Strings and tokenizers as arguments.

use std::path::PathBuf;
use std::sync::Arc;

use lz_core::{Handle, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PySequence, PyString};

use crate::error::refuse;

/// A batch of strings, borrowed from Python.
///
/// The strings are held as the interpreter's own references: they are given back while it is attached, at the end of the call.
pub struct Texts<'py>(Vec<Bound<'py, PyString>>);

impl<'py> Texts<'py> {
    /// From one string or a sequence of them.
    pub fn new(operation: &str, name: &str, object: &Bound<'py, PyAny>) -> PyResult<Texts<'py>> {
        if let Ok(text) = object.cast::<PyString>() {
            text.to_str()?;
            return Ok(Texts(vec![text.clone()]));
        }
        let wrong = || {
            let reason = Reason::new(ReasonCode::ArgumentKind)
                .argument(name)
                .required("a string or a sequence of strings")
                .found(object.get_type().to_string());
            refuse(object.py(), operation, reason)
        };
        let sequence = object.cast::<PySequence>().map_err(|_| wrong())?;
        let mut texts = Vec::with_capacity(sequence.len().unwrap_or(0));
        for one in sequence.try_iter()? {
            let text = one?.cast_into::<PyString>().map_err(|_| wrong())?;
            // Lone surrogates have no UTF-8; the exception says so.
            text.to_str()?;
            texts.push(text);
        }
        Ok(Texts(texts))
    }

    /// As the engine takes them.
    pub fn as_strs(&self) -> Vec<&str> {
        self.0.iter().map(|text| text.to_str().unwrap_or_default()).collect()
    }
}

/// A tokenizer, known by the digest of everything that can change its tokens.
#[pyclass(name = "Tokenizer", module = "layerzero", frozen)]
pub struct PyTokenizer {
    handle: Arc<Tokenizer>,
}

#[pymethods]
impl PyTokenizer {
    /// From the path of a `tokenizer.json`.
    #[staticmethod]
    fn from_file(path: PathBuf) -> PyResult<PyTokenizer> {
        let handle = Tokenizer::from_file(&path).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTokenizer { handle: Arc::new(handle) })
    }

    /// From the text of a `tokenizer.json`.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<PyTokenizer> {
        PyTokenizer::from_bytes(text.as_bytes())
    }

    /// SHA-256 of everything that can change tokens, in hex.
    #[getter]
    fn digest(&self) -> String {
        self.handle.digest().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl PyTokenizer {
    /// Around a tokenizer.
    pub fn new(tokenizer: Tokenizer) -> PyTokenizer {
        PyTokenizer { handle: Arc::new(tokenizer) }
    }

    /// The tokenizer.
    pub fn handle(&self) -> &Tokenizer {
        &self.handle
    }

    /// From the bytes of a `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> PyResult<PyTokenizer> {
        let handle = Tokenizer::from_json(json).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTokenizer { handle: Arc::new(handle) })
    }

    /// Whether it is the tokenizer with this digest.
    pub fn is(&self, digest: [u8; 32]) -> bool {
        self.handle.digest() == digest
    }
}

/// The tokenizer behind an argument.
pub fn tokenizer(operation: &str, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Arc<Tokenizer>> {
    match object.cast::<PyTokenizer>() {
        Ok(tokenizer) => Ok(Arc::clone(&tokenizer.get().handle)),
        Err(_) => {
            let reason = Reason::new(ReasonCode::ArgumentKind)
                .argument(name)
                .required("a layerzero.Tokenizer")
                .found(object.get_type().to_string());
            Err(refuse(object.py(), operation, reason))
        }
    }
}
