//! Strings and tokenizers as arguments.

use std::path::PathBuf;
use std::sync::Arc;

use lz_core::{Handle, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::error::refuse;

/// A batch of strings, borrowed from Python.
pub struct Texts(Vec<PyBackedStr>);

impl Texts {
    /// From one string or a sequence of them.
    pub fn new(operation: &str, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Texts> {
        if let Ok(text) = object.extract::<PyBackedStr>() {
            return Ok(Texts(vec![text]));
        }
        object.extract::<Vec<PyBackedStr>>().map(Texts).map_err(|_| {
            let reason = Reason::new(ReasonCode::ArgumentKind)
                .argument(name)
                .required("a string or a sequence of strings")
                .found(object.get_type().to_string());
            refuse(object.py(), operation, reason)
        })
    }

    /// As the engine takes them.
    pub fn as_strs(&self) -> Vec<&str> {
        self.0.iter().map(|text| &**text).collect()
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
        let handle = Tokenizer::from_json(text.as_bytes())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTokenizer { handle: Arc::new(handle) })
    }

    /// SHA-256 of everything that can change tokens, in hex.
    #[getter]
    fn digest(&self) -> String {
        self.handle.digest().iter().map(|byte| format!("{byte:02x}")).collect()
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
