//! Strings and tokenizers as arguments.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use lz_core::{Handle, Reason, ReasonCode};
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
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

    /// The bytes of all texts together.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|text| text.to_str().map_or(0, str::len)).sum()
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
    /// From the path of a `tokenizer.json`, or of a SentencePiece model if its name ends in `.model`. With `whole_texts`, truncation
    /// and padding that it states are ignored instead of refused.
    #[staticmethod]
    #[pyo3(signature = (path, *, whole_texts=false))]
    fn from_file(py: Python<'_>, path: PathBuf, whole_texts: bool) -> PyResult<PyTokenizer> {
        PyTokenizer::load(py, move || match whole_texts {
            true => Tokenizer::whole_texts_from_file(path),
            false => Tokenizer::from_file(path),
        })
    }

    /// From the text of a `tokenizer.json`.
    #[staticmethod]
    #[pyo3(signature = (text, *, whole_texts=false))]
    fn from_json(py: Python<'_>, text: &str, whole_texts: bool) -> PyResult<PyTokenizer> {
        let json = text.as_bytes().to_vec();
        PyTokenizer::load(py, move || match whole_texts {
            true => Tokenizer::whole_texts(&json),
            false => Tokenizer::from_json(&json),
        })
    }

    /// The same tokenizer for texts from outside: special tokens in a text are encoded as the plain text they are.
    fn splitting_special_tokens(&self, py: Python<'_>) -> PyResult<PyTokenizer> {
        let made = py.detach(|| self.handle.splitting_special_tokens());
        made.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string()))
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
        let read = Tokenizer::from_json(json).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTokenizer::new(read))
    }

    /// Loads one without the interpreter lock.
    pub fn load(
        py: Python<'_>,
        load: impl FnOnce() -> Result<Tokenizer, TokenizerError> + Send + 'static,
    ) -> PyResult<PyTokenizer> {
        let loaded = interruptible(py, load)?;
        loaded.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Whether it is the tokenizer with this digest.
    pub fn is(&self, digest: [u8; 32]) -> bool {
        self.handle.digest() == digest
    }
}

/// The tokenizer behind an argument.
pub fn tokenizer(operation: &str, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Arc<Tokenizer>> {
    match object.cast::<PyTokenizer>() {
        Ok(tokenizer) => {
            let handle = Arc::clone(&tokenizer.get().handle);
            // The engine would do so itself, but with the interpreter lock.
            if !lz_tokenize::is_prepared(&handle) {
                let tokenizer = Tokenizer::clone(&handle);
                interruptible(object.py(), move || drop(lz_tokenize::prepare(&tokenizer)))?;
            }
            Ok(handle)
        }
        Err(_) => {
            let reason = Reason::new(ReasonCode::ArgumentKind)
                .argument(name)
                .required("a layerzero.Tokenizer")
                .found(object.get_type().to_string());
            Err(refuse(object.py(), operation, reason))
        }
    }
}

/// How often signals are looked for while something long runs.
const SIGNALS: Duration = Duration::from_millis(50);

/// Runs something long on a thread of its own, without the interpreter lock, so that other threads run and Ctrl-C raises. What was
/// interrupted runs to its end in the background.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(1);
    std::thread::Builder::new().name("lz-tokenizer".to_owned()).spawn(move || sender.send(work()))?;
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(SIGNALS)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "loading the tokenizer panicked; please report the definition",
                ));
            }
        }
    }
}
