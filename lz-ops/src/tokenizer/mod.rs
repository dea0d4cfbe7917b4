//! Tokenizer handles: a `tokenizer.json` in the Hugging Face format or a SentencePiece model, its digest, encoding and decoding.
//!
//! A `tokenizer.json` is interpreted by the `tokenizers` crate, behind the feature of that name. Without the feature only SentencePiece
//! models can be loaded.

mod digest;
mod json;
mod limits;
mod model;
mod panics;
mod registry;
mod sentencepiece;

#[cfg(not(feature = "tokenizers"))]
#[path = "definition_disabled.rs"]
mod definition;
#[cfg(feature = "tokenizers")]
mod definition;
#[cfg(feature = "tokenizers")]
mod direct;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use json::Json;
use lz_core::context::digest_bits;
use lz_core::fork;
use lz_core::{Handle, KernelError, Reason, ReasonCode};
use lz_files::RegularFile;
use model::Model;
pub use panics::catch_panic;

/// A tokenizer for `tokenize.encode` and `tokenize.decode`. Clones share their state.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

/// The state that clones share.
struct Shared {
    model: Model,
    json: Box<[u8]>,
    digest: [u8; 32],
    /// The definition without its large parts.
    outline: serde_json::Value,
    /// State that a backend attached.
    prepared: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The tokenizer that encodes special tokens in texts as plain text; `None` if it is this one.
    splitting: OnceLock<Result<Option<Tokenizer>, TokenizerError>>,
}

/// A weak reference to a tokenizer.
#[derive(Clone)]
pub struct WeakTokenizer(Weak<Shared>);

impl WeakTokenizer {
    /// The tokenizer, if it is alive.
    pub fn upgrade(&self) -> Option<Tokenizer> {
        self.0.upgrade().map(|shared| Tokenizer { shared })
    }

    /// Whether both refer to the same tokenizer, alive or not.
    pub fn is_same(&self, other: &WeakTokenizer) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Whether the tokenizer is alive.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// One token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Byte range in the text before normalization; `0..0` for a token that came from no text.
    pub bytes: Range<usize>,
}

/// Why a tokenizer cannot be loaded or used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerError {
    /// The file cannot be read.
    Unreadable {
        /// Its path.
        path: String,
        /// The message of the system.
        message: String,
    },
    /// The content of a file is not a tokenizer that can be loaded.
    Content {
        /// The path of the file.
        path: String,
        /// What is wrong with its content.
        error: Box<TokenizerError>,
    },
    /// The text is not JSON.
    Json {
        /// The syntax error and its location.
        message: String,
    },
    /// The content is not a valid tokenizer definition.
    Definition {
        /// What is wrong.
        message: String,
    },
    /// The definition exceeds a limit.
    Limit {
        /// The part that exceeds a limit.
        part: String,
        /// The limit and what was found.
        message: String,
    },
    /// The definition sets truncation or padding, which are not supported.
    Setting {
        /// `truncation` or `padding`.
        name: &'static str,
        /// The value of the setting.
        stated: String,
    },
    /// The file is not a supported SentencePiece model.
    SentencePiece {
        /// What is wrong.
        message: String,
    },
    /// The definition has BPE dropout, so that its tokens are random.
    Random {
        /// The probability of skipping a merge.
        dropout: String,
    },
    /// Encoding or decoding failed.
    Failed {
        /// The message of the library.
        message: String,
    },
    /// This build does not support `tokenizer.json`.
    NotBuilt,
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenizerError::Unreadable { path, message } => write!(f, "cannot read `{path}`: {message}"),
            TokenizerError::Content { path, error } => write!(f, "`{path}`: {error}"),
            TokenizerError::Json { message } => {
                write!(f, "the tokenizer definition is not valid JSON: {message}")
            }
            TokenizerError::Definition { message } => {
                write!(f, "not a valid tokenizer definition: {message}")
            }
            TokenizerError::Limit { part, message } => {
                write!(f, "`{part}` of the tokenizer exceeds a limit: {message}")
            }
            TokenizerError::Setting { name, stated } => write!(
                f,
                "the tokenizer states `{name}` ({stated}), but texts are encoded without truncation and padding: set `{name}` to null, or \
                 load the definition with `whole_texts` to ignore the setting, and {} the rows yourself",
                if *name == "padding" { "pad" } else { "truncate" }
            ),
            TokenizerError::SentencePiece { message } => {
                write!(f, "cannot load the SentencePiece model: {message}")
            }
            TokenizerError::Random { dropout } => {
                write!(
                    f,
                    "the tokenizer has `dropout` {dropout}, so its tokens are random; set `dropout` to null"
                )
            }
            TokenizerError::Failed { message } => write!(f, "the tokenizer failed: {message}"),
            TokenizerError::NotBuilt => f.write_str(
                "this build of lz-ops cannot load a `tokenizer.json`; build it with the feature `tokenizers`",
            ),
        }
    }
}

impl std::error::Error for TokenizerError {}

impl TokenizerError {
    /// The same error with the path of the file whose content it is about.
    #[must_use]
    pub fn in_file(self, path: &Path) -> TokenizerError {
        match self {
            named @ (TokenizerError::Unreadable { .. } | TokenizerError::Content { .. }) => named,
            error => TokenizerError::Content { path: path.display().to_string(), error: Box::new(error) },
        }
    }
}

impl Tokenizer {
    /// Loads the content of a `tokenizer.json`. A definition with truncation or padding is rejected, because calls encode whole texts.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::read(Cow::Borrowed(json), Settings::Rejected)
    }

    /// Like [`Tokenizer::from_json`], but ignores truncation and padding.
    pub fn whole_texts(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::read(Cow::Borrowed(json), Settings::Ignored)
    }

    fn read(json: Cow<'_, [u8]>, settings: Settings) -> Result<Tokenizer, TokenizerError> {
        limits::check_size(json.len())?;
        let mut tree = parse_tree(&json)?;
        limits::check(&tree)?;
        let dropout = tree.get("model").get("dropout");
        if let Json::Number(probability) = dropout
            && probability.as_f64().is_some_and(|probability| probability != 0.0)
        {
            return Err(TokenizerError::Random { dropout: dropout.to_string() });
        }
        // The JSON is parsed again later, also by other processes: it must not contain the ignored settings.
        let changed = match settings.are_removed(&mut tree)? {
            true => Some(serde_json::to_vec(&tree).map_err(json_error)?),
            false => None,
        };
        limits::check_size(changed.as_ref().map_or(0, Vec::len))?;
        let digest = digest::of(&tree);
        if let Some(same) = registry::find(digest_bits(&digest)).filter(|known| known.shared.digest == digest)
        {
            return Ok(same);
        }
        let outline = tree.outline(OUTLINE_ENTRIES);
        let model = Model::parse(&tree, changed.as_deref().unwrap_or(&json))?;
        drop(tree);
        let shared = Shared {
            model,
            json: changed.unwrap_or_else(|| json.into_owned()).into(),
            digest,
            outline,
            prepared: OnceLock::new(),
            splitting: OnceLock::new(),
        };
        let tokenizer = Tokenizer { shared: Arc::new(shared) };
        registry::register(&tokenizer);
        Ok(tokenizer)
    }

    /// Loads the content of a SentencePiece `.model` file.
    pub fn from_sentencepiece(model: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_json(model::sentencepiece_json(model).as_bytes())
    }

    /// Loads a SentencePiece model if the file name ends in `.model`, else a `tokenizer.json` like [`Tokenizer::from_json`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        let path = path.as_ref();
        let content = read_file(path)?;
        let read = match path.extension().is_some_and(|extension| extension == "model") {
            true => Tokenizer::from_sentencepiece(&content),
            false => Tokenizer::read(Cow::Owned(content), Settings::Rejected),
        };
        read.map_err(|error| error.in_file(path))
    }

    /// Loads a `tokenizer.json` file like [`Tokenizer::whole_texts`].
    pub fn whole_texts_from_file(path: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        let path = path.as_ref();
        Tokenizer::read(Cow::Owned(read_file(path)?), Settings::Ignored).map_err(|error| error.in_file(path))
    }

    /// The same tokenizer for untrusted texts: special tokens in a text are encoded as plain text, so that no text can inject one. The
    /// post-processor adds its special tokens as before. The result has its own digest.
    pub fn splitting_special_tokens(&self) -> Result<Tokenizer, TokenizerError> {
        let _inside = fork::hold();
        let split = self.shared.splitting.get_or_init(|| {
            let json = model::split_json(&self.shared.json)?;
            json.map(|json| Tokenizer::from_json(json.as_bytes())).transpose()
        });
        Ok(split.clone()?.unwrap_or_else(|| self.clone()))
    }

    /// The live tokenizer with [these bits](lz_core::context::digest_bits) of a digest, for judges that see only a context.
    pub fn of_digest_bits(bits: u64) -> Option<Tokenizer> {
        registry::find(bits)
    }

    /// State that a backend attaches to this tokenizer, built by `make` on first use and dropped with the tokenizer. `None` if another
    /// backend has attached state of another type.
    pub fn prepared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        let prepared = self.shared.prepared.get().unwrap_or_else(|| {
            let _inside = fork::hold();
            self.shared.prepared.get_or_init(|| Box::new(make()))
        });
        prepared.downcast_ref()
    }

    fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// The tokenizer behind a handle; an error if the handle has another type.
    pub fn from_handle(handle: &dyn Handle) -> Result<&Tokenizer, KernelError> {
        handle.as_any().downcast_ref().ok_or_else(|| {
            KernelError::because(
                Reason::new(ReasonCode::TokenizerIdMismatch)
                    .argument("tokenizer")
                    .required("a handle of type lz_ops::tokenizer::Tokenizer")
                    .found("a handle of another type"),
            )
        })
    }

    /// The tokens of a text, with `add_special_tokens` also those of the post-processor. Nothing is truncated or padded.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        self.shared.model.encode(text, add_special_tokens)
    }

    /// The text of ids; unknown ids are skipped.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        self.shared.model.decode(ids, skip_special_tokens)
    }

    /// The token of an id, of the model or added; `None` for an unknown id.
    pub fn token_of(&self, id: u32) -> Option<String> {
        self.shared.model.token_of(id)
    }

    /// The id of a token, of the model or added; `None` for an unknown token.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.shared.model.id_of(token)
    }

    /// The number of tokens, with added ones. Ids may be larger if a definition skips some.
    pub fn vocabulary_size(&self) -> usize {
        self.shared.model.vocabulary_size()
    }

    /// The parsed definition. Each call parses, because the value takes several times the memory of the text.
    pub fn parsed(&self) -> Result<serde_json::Value, TokenizerError> {
        serde_json::from_slice(self.json()).map_err(json_error)
    }

    /// The definition with lists and objects of more than 64 entries, such as the vocabulary, replaced by empty ones.
    pub fn outline(&self) -> &serde_json::Value {
        &self.shared.outline
    }

    /// A weak reference.
    pub fn downgraded(&self) -> WeakTokenizer {
        WeakTokenizer(self.downgrade())
    }

    /// Whether there are other references to this tokenizer.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    /// Whether it is a SentencePiece model.
    pub fn is_sentencepiece(&self) -> bool {
        matches!(self.shared.model, Model::SentencePiece(_))
    }

    /// The JSON of the definition, for kernels that parse it themselves.
    pub fn json(&self) -> &[u8] {
        &self.shared.json
    }
}

/// How truncation and padding settings of a definition are handled.
#[derive(Clone, Copy)]
enum Settings {
    Rejected,
    Ignored,
}

/// The settings for which [`Settings`] is.
const SETTINGS: [&str; 2] = ["truncation", "padding"];

/// Larger lists and objects are not part of [`Tokenizer::outline`].
const OUTLINE_ENTRIES: usize = 64;

impl Settings {
    /// Rejects the settings, or sets them to null and returns whether there were any.
    fn are_removed(self, definition: &mut Json<'_>) -> Result<bool, TokenizerError> {
        let mut removed = false;
        for name in SETTINGS {
            let stated = definition.get(name);
            match self {
                _ if stated.is_null() => {}
                Settings::Rejected => {
                    return Err(TokenizerError::Setting { name, stated: stated.to_string() });
                }
                Settings::Ignored => {
                    definition.set_null(name);
                    removed = true;
                }
            }
        }
        Ok(removed)
    }
}

fn parse_tree(json: &[u8]) -> Result<Json<'_>, TokenizerError> {
    Json::parse(json).map_err(json_error)
}

fn json_error(error: serde_json::Error) -> TokenizerError {
    TokenizerError::Json { message: error.to_string() }
}

/// Reads the file of a tokenizer. Its size is limited, and it must be a regular file.
pub fn read_file(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let read = RegularFile::open(path).and_then(|mut file| file.bytes(limits::MAX_BYTES as u64));
    read.map_err(|error| TokenizerError::Unreadable {
        path: path.display().to_string(),
        message: error.to_string(),
    })
}

impl Handle for Tokenizer {
    fn digest(&self) -> [u8; 32] {
        self.shared.digest
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("digest", &self.shared.digest).finish_non_exhaustive()
    }
}
