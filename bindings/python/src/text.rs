//! Strings and tokenizers as arguments.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lz_core::{Handle, Reason, ReasonCode};
use lz_ops::tokenizer::{Tokenizer, TokenizerError};
use lz_tokenize::{ChatError, ChatTemplates, VerificationState};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySequence, PyString};

use crate::engine::engine;
use crate::error::validation_error;
use crate::text_stream::PyTextStream;
use crate::token_id::{token_id, type_name};

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
        let wrong = |found: String| {
            let reason = Reason::new(ReasonCode::ArgumentKind)
                .argument(name)
                .required("a string or a sequence of strings")
                .found(found);
            validation_error(object.py(), operation, reason)
        };
        if object.is_instance_of::<PyBytes>() {
            return Err(wrong("bytes".to_owned()));
        }
        let sequence = object.cast::<PySequence>().map_err(|_| wrong(type_name(object)))?;
        let mut texts = Vec::with_capacity(sequence.len().unwrap_or(0));
        for (position, one) in sequence.try_iter()?.enumerate() {
            let text = one?.cast_into::<PyString>().map_err(|error| {
                wrong(format!("{} at position {position}", type_name(&error.into_inner())))
            })?;
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

/// What pickle stores: a function and its arguments.
type Reduced<'py> = (Bound<'py, PyAny>, (String, Option<String>));

/// A tokenizer, identified by the digest of everything that affects its tokens.
#[pyclass(name = "Tokenizer", module = "layerzero", frozen)]
pub struct PyTokenizer {
    handle: Arc<Tokenizer>,
    /// The chat templates, once they were used or given.
    chat: OnceLock<Result<ChatTemplates, ChatError>>,
    /// The folder of the file, where the chat templates are.
    folder: Option<PathBuf>,
    /// The digest in hex, which every call of `lz.tokenize` asks for.
    digest: OnceLock<String>,
}

#[pymethods]
impl PyTokenizer {
    /// Loads a `tokenizer.json`, a SentencePiece model, a `tekken.json`, a `vocab.txt` next to its
    /// `tokenizer_config.json`, or the tiktoken ranks of a built-in encoding. The content decides which of
    /// them a file is; `path` may also be the folder of the file. With `whole_texts`, truncation and padding in a `tokenizer.json` are ignored instead of
    /// refused.
    #[staticmethod]
    #[pyo3(signature = (path, *, whole_texts=false))]
    fn from_file(py: Python<'_>, path: PathBuf, whole_texts: bool) -> PyResult<PyTokenizer> {
        let path: PathBuf = py.import("layerzero._tokenize")?.call_method1("file_of", (path,))?.extract()?;
        let folder = path.parent().map(PathBuf::from);
        let loaded = PyTokenizer::load(py, move || lz_tokenize::from_file(path, whole_texts))?;
        Ok(PyTokenizer { folder, ..loaded })
    }

    /// Loads a file of tiktoken ranks. `pattern` is the regular expression that splits texts, or the name of
    /// an encoding that has the same one; `special_tokens` maps texts to ids.
    #[staticmethod]
    #[pyo3(signature = (path, *, pattern, special_tokens=None))]
    fn from_tiktoken(
        py: Python<'_>,
        path: PathBuf,
        pattern: String,
        special_tokens: Option<BTreeMap<String, u32>>,
    ) -> PyResult<PyTokenizer> {
        let special = special_tokens.unwrap_or_default().into_iter().map(|(text, id)| (id, text)).collect();
        PyTokenizer::load(py, move || lz_tokenize::from_tiktoken(path, &pattern, special))
    }

    /// Loads a `vocab.txt` of BERT: one WordPiece token per line.
    #[staticmethod]
    #[pyo3(signature = (path, *, lowercase, strip_accents=None, chinese_characters=true))]
    fn from_vocabulary(
        py: Python<'_>,
        path: PathBuf,
        lowercase: bool,
        strip_accents: Option<bool>,
        chinese_characters: bool,
    ) -> PyResult<PyTokenizer> {
        let options = lz_tokenize::VocabularyOptions { lowercase, strip_accents, chinese_characters };
        PyTokenizer::load(py, move || lz_tokenize::from_vocabulary(path, options))
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
        let made = made.map(PyTokenizer::new).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyTokenizer { chat: self.chat.clone(), folder: self.folder.clone(), ..made })
    }

    /// SHA-256 of everything that affects tokens, in hex.
    #[getter]
    fn digest(&self) -> &str {
        self.digest.get_or_init(|| self.handle.digest().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The number of tokens, with added ones.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.handle.vocabulary_size()
    }

    /// The token of an id; `None` if there is none.
    fn id_to_token(&self, id: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        Ok(self.handle.token_of(token_id(id, u32::MAX.into())?))
    }

    /// The id of a token; `None` if there is none.
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.handle.id_of(token)
    }

    /// The definition as JSON, which `from_json` reads.
    fn to_json(&self) -> PyResult<&str> {
        std::str::from_utf8(self.handle.json()).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Token ids of texts, as `lz.tokenize` with this tokenizer.
    #[pyo3(signature = (texts, **options))]
    fn encode<'py>(
        slf: &Bound<'py, PyTokenizer>,
        texts: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "tokenize")?.call((texts, slf), options)
    }

    /// Texts of token ids, as `lz.detokenize` with this tokenizer.
    #[pyo3(signature = (tokens, **options))]
    fn decode<'py>(
        slf: &Bound<'py, PyTokenizer>,
        tokens: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "detokenize")?.call((tokens, slf), options)
    }

    /// The number of tokens of a text, or of each of several.
    #[pyo3(signature = (texts, **options))]
    fn count<'py>(
        slf: &Bound<'py, PyTokenizer>,
        texts: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "count_tokens")?.call((texts, slf), options)
    }

    /// A padded batch of texts or of pairs of texts, as `lz.tokenize_batch` with this tokenizer.
    #[pyo3(signature = (texts, pairs=None, **options))]
    fn batch<'py>(
        slf: &Bound<'py, PyTokenizer>,
        texts: &Bound<'py, PyAny>,
        pairs: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "tokenize_batch")?.call((texts, slf, pairs), options)
    }

    /// Renders a conversation with the chat template of the model, and tokenizes it: messages with `role` and
    /// `content`. `tools` are JSON schemas, or functions if Transformers is installed. With `tokenize=False` the
    /// text is returned. With `continue_final_message`, the text ends inside of the last message, which the model
    /// continues. `chat_template` is a template or the name of one; other keywords are variables of the template. The templates come from `tokenizer_config.json` and `chat_template.jinja` next to the file of
    /// the tokenizer, or from `with_chat_template`.
    #[pyo3(signature = (messages, **options))]
    fn apply_chat_template<'py>(
        slf: &Bound<'py, PyTokenizer>,
        messages: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "apply_chat_template")?.call((messages, slf), options)
    }

    /// The same tokenizer with a chat template, or with several by name. `special_tokens` are variables of the
    /// templates, such as `bos_token`.
    #[pyo3(signature = (chat_template, *, special_tokens=None))]
    fn with_chat_template<'py>(
        slf: &Bound<'py, PyTokenizer>,
        chat_template: &Bound<'py, PyAny>,
        special_tokens: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        helper(slf, "with_chat_template")?.call1((slf, chat_template, special_tokens))
    }

    /// A decoder that takes ids one at a time.
    #[pyo3(signature = (*, skip_special_tokens=true))]
    fn stream(&self, skip_special_tokens: bool) -> PyTextStream {
        PyTextStream::new(&self.handle, skip_special_tokens)
    }

    /// How far the verification of the native kernel is: `"not started"`, `"running"`, `"verified"`, or why no kernel
    /// is equal to the definition, which then encodes itself. The first call starts it.
    #[getter]
    fn verification(&self) -> String {
        match lz_tokenize::verification_state(&self.handle) {
            VerificationState::NotStarted => "not started".to_owned(),
            VerificationState::Running => "running".to_owned(),
            VerificationState::Verified => "verified".to_owned(),
            VerificationState::Rejected(reason) => reason.to_string(),
        }
    }

    /// Starts the verification of the native kernel and waits until it has ended, at most `timeout` seconds. Returns
    /// whether it has ended.
    #[pyo3(signature = (timeout=None))]
    fn wait_verified(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let seconds = timeout.map(Duration::try_from_secs_f64).transpose();
        let seconds = seconds.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
        let tokenizer = Tokenizer::clone(&self.handle);
        interruptible(py, move || lz_tokenize::wait_verified(&tokenizer, seconds))
    }

    fn __repr__(&self) -> String {
        format!("Tokenizer(vocab_size={}, digest={:?})", self.vocab_size(), &self.digest()[..12])
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyTokenizer>().is_ok_and(|other| other.get().is(self.handle.digest()))
    }

    fn __hash__(&self) -> u64 {
        lz_core::context::digest_bits(&self.handle.digest())
    }

    /// Pickled as its definition and its chat templates.
    fn __reduce__<'py>(slf: &Bound<'py, PyTokenizer>) -> PyResult<Reduced<'py>> {
        let json = slf.get().to_json()?.to_owned();
        // Templates that cannot be read are reported where they are used.
        let config = slf.get().chat_templates().as_ref().ok().map(ChatTemplates::to_config);
        Ok((slf.py().import("layerzero._native")?.getattr("tokenizer_of_parts")?, (json, config)))
    }
}

/// A function of the Python module that implements calls with lists and arrays.
fn helper<'py>(tokenizer: &Bound<'py, PyTokenizer>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    tokenizer.py().import("layerzero._tokenize")?.getattr(name)
}

impl PyTokenizer {
    /// Wraps a tokenizer.
    pub fn new(tokenizer: Tokenizer) -> PyTokenizer {
        PyTokenizer {
            handle: Arc::new(tokenizer),
            chat: OnceLock::new(),
            folder: None,
            digest: OnceLock::new(),
        }
    }

    /// The same tokenizer with other chat templates.
    pub fn with_chat(&self, templates: ChatTemplates) -> PyTokenizer {
        PyTokenizer {
            handle: Arc::clone(&self.handle),
            chat: OnceLock::from(Ok(templates)),
            folder: None,
            digest: OnceLock::new(),
        }
    }

    /// The chat templates, read from the folder of the tokenizer on first use.
    pub fn chat_templates(&self) -> &Result<ChatTemplates, ChatError> {
        self.chat.get_or_init(|| match &self.folder {
            Some(folder) => ChatTemplates::from_folder(folder),
            None => Ok(ChatTemplates::default()),
        })
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
            // Verified here, because the engine would wait while the GIL is held.
            if !lz_tokenize::is_prepared(&handle) && engine()?.policy().verify_before_first_call.value {
                let tokenizer = Tokenizer::clone(&handle);
                interruptible(py, move || drop(lz_tokenize::prepare(&tokenizer)))?;
            }
            Ok(handle)
        }
        Err(_) => {
            let reason = Reason::new(ReasonCode::ArgumentKind)
                .argument(name)
                .required("a layerzero.Tokenizer, or the path or name of one")
                .found(type_name(object));
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
