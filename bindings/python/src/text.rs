//! Strings and tokenizers as arguments.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use lz_core::{Handle, Reason, ReasonCode};
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PySequence, PyString};

use crate::error::validation_error;

/// A batch of strings, borrowed from Python.
///
/// The strings are owned references that are released with the GIL held, at the end of the call.
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
            validation_error(object.py(), operation, reason)
        };
        let sequence = object.cast::<PySequence>().map_err(|_| wrong())?;
        let mut texts = Vec::with_capacity(sequence.len().unwrap_or(0));
        for one in sequence.try_iter()? {
            let text = one?.cast_into::<PyString>().map_err(|_| wrong())?;
            // Lone surrogates cannot be encoded as UTF-8; `to_str` raises then.
            text.to_str()?;
            texts.push(text);
        }
        Ok(Texts(texts))
    }

    /// Total UTF-8 bytes of all texts.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|text| text.to_str().map_or(0, str::len)).sum()
    }

    /// As string slices.
    pub fn as_strs(&self) -> Vec<&str> {
        self.0.iter().map(|text| text.to_str().unwrap_or_default()).collect()
    }
}

/// A tokenizer, identified by the digest of everything that affects its tokens.
#[pyclass(name = "Tokenizer", module = "layerzero", frozen)]
pub struct PyTokenizer {
    handle: Arc<Tokenizer>,
}

#[pymethods]
impl PyTokenizer {
    /// Loads a `tokenizer.json`, or a SentencePiece model if the name ends in `.model`. With `whole_texts`,
    /// truncation and padding in the definition are ignored instead of refused.
    #[staticmethod]
    #[pyo3(signature = (path, *, whole_texts=false))]
    fn from_file(py: Python<'_>, path: PathBuf, whole_texts: bool) -> PyResult<PyTokenizer> {
        PyTokenizer::load(py, move || match whole_texts {
            true => Tokenizer::whole_texts_from_file(path),
            false => Tokenizer::from_file(path),
        })
    }

    /// Loads the text of a `tokenizer.json`.
    #[staticmethod]
    #[pyo3(signature = (text, *, whole_texts=false))]
    fn from_json(py: Python<'_>, text: &str, whole_texts: bool) -> PyResult<PyTokenizer> {
        let json = text.as_bytes().to_vec();
        PyTokenizer::load(py, move || match whole_texts {
            true => Tokenizer::whole_texts(&json),
            false => Tokenizer::from_json(&json),
        })
    }

    /// The same tokenizer for untrusted text: special tokens in a text are encoded as plain text.
    fn splitting_special_tokens(&self, py: Python<'_>) -> PyResult<PyTokenizer> {
        let made = py.detach(|| self.handle.splitting_special_tokens());
        made.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// SHA-256 of everything that affects tokens, in hex.
    #[getter]
    fn digest(&self) -> String {
        self.handle.digest().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl PyTokenizer {
    /// Wraps a tokenizer.
    pub fn new(tokenizer: Tokenizer) -> PyTokenizer {
        PyTokenizer { handle: Arc::new(tokenizer) }
    }

    /// The tokenizer.
    pub fn handle(&self) -> &Tokenizer {
        &self.handle
    }

    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> PyResult<PyTokenizer> {
        let read = Tokenizer::from_json(json).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTokenizer::new(read))
    }

    /// Loads a tokenizer without the GIL.
    pub fn load(
        py: Python<'_>,
        load: impl FnOnce() -> Result<Tokenizer, TokenizerError> + Send + 'static,
    ) -> PyResult<PyTokenizer> {
        let loaded = interruptible(py, load)?;
        loaded.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Whether the tokenizer has this digest.
    pub fn is(&self, digest: [u8; 32]) -> bool {
        self.handle.digest() == digest
    }
}

/// The tokenizer of an argument: a `Tokenizer`, or anything that `lz.tokenize` resolves to one, such as the name of an encoding.
pub fn tokenizer(operation: &str, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Arc<Tokenizer>> {
    let py = object.py();
    let resolved = if object.is_instance_of::<PyTokenizer>() {
        object.clone()
    } else {
        match py.import("layerzero._tokenize")?.call_method1("resolve", (object,)) {
            // It is nothing that describes a tokenizer: refused below.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => object.clone(),
            resolved => resolved?,
        }
    };
    match resolved.cast::<PyTokenizer>() {
        Ok(tokenizer) => {
            let handle = Arc::clone(&tokenizer.get().handle);
            // Prepared here, because the engine would do it while the GIL is held.
            if !lz_tokenize::is_prepared(&handle) {
                let tokenizer = Tokenizer::clone(&handle);
                interruptible(py, move || drop(lz_tokenize::prepare(&tokenizer)))?;
            }
            Ok(handle)
        }
        Err(_) => {
            let reason = Reason::new(ReasonCode::ArgumentKind)
                .argument(name)
                .required("a layerzero.Tokenizer, or the path or name of one")
                .found(object.get_type().to_string());
            Err(validation_error(py, operation, reason))
        }
    }
}

/// Interval of signal checks during long work.
const SIGNALS: Duration = Duration::from_millis(50);

/// Runs long work on its own thread without the GIL, so that other threads run and Ctrl-C raises. Interrupted
/// work runs to its end in the background.
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
                    "loading the tokenizer panicked; please report the tokenizer definition",
                ));
            }
        }
    }
}
