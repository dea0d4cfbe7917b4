//! Streaming decoding for Python.

use std::sync::Mutex;

use lz_ops::tokenizer::Tokenizer;
use lz_tokenize::TextStream;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyString;

use crate::token_id::token_id;

/// Decodes ids step by step: each step returns the text that cannot change any more, never half a character.
#[pyclass(name = "TextStream", module = "layerzero", frozen)]
pub struct PyTextStream {
    stream: Mutex<TextStream>,
}

#[pymethods]
impl PyTextStream {
    /// Adds an id or several. Returns the text that they complete; it is empty while a character is incomplete.
    fn push(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<String> {
        let id = |id: &Bound<'_, PyAny>| token_id(id, u32::MAX.into());
        let ids: Vec<u32> = match ids.try_iter() {
            Ok(several) if !ids.is_instance_of::<PyString>() => {
                several.map(|one| id(&one?)).collect::<PyResult<_>>()?
            }
            _ => vec![id(ids)?],
        };
        self.locked(py, |stream| {
            let mut text = String::new();
            for id in ids {
                text.push_str(&stream.push(id)?);
            }
            Ok(text)
        })
    }

    /// Ends the text. Returns what is left, with U+FFFD for an incomplete character.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.locked(py, TextStream::finish)
    }
}

impl PyTextStream {
    /// A stream without ids.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> PyTextStream {
        PyTextStream { stream: Mutex::new(TextStream::new(tokenizer, skip_special)) }
    }

    fn locked(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut TextStream) -> Result<String, lz_ops::tokenizer::TokenizerError>,
    ) -> PyResult<String> {
        let mut stream = self.stream.lock_py_attached(py).unwrap_or_else(std::sync::PoisonError::into_inner);
        work(&mut stream).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}
