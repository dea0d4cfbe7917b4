//! Tokenizers as handles: a `tokenizer.json` in the Hugging Face format or a SentencePiece model, its digest, and what it makes of
//! texts.
//!
//! What a `tokenizer.json` means is the business of the `tokenizers` crate, behind the feature of that name. Without the feature
//! only SentencePiece models can be read, and everything else of this crate works as before.

mod contained;
mod digest;
mod known;
mod limits;
mod meaning;
mod sentencepiece;

#[cfg(not(feature = "tokenizers"))]
#[path = "absent.rs"]
mod definition;
#[cfg(feature = "tokenizers")]
mod definition;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

pub use contained::contained;
use lz_core::context::digest_bits;
use lz_core::{Handle, KernelError, Reason, ReasonCode};
use lz_files::RegularFile;
use meaning::Meaning;

/// A tokenizer, as `tokenize.encode` and `tokenize.decode` take it. A clone is the same tokenizer.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

/// What the clones of a tokenizer have in common.
struct Shared {
    meaning: Meaning,
    json: Box<[u8]>,
    digest: [u8; 32],
    /// The parsed JSON, for the first who reads it: parsing takes as long as the rest of loading.
    parsed: Mutex<Option<serde_json::Value>>,
    /// What a backend has made of it.
    prepared: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The tokenizer for texts whose special tokens are text; none if that is this one.
    splitting: OnceLock<Result<Option<Tokenizer>, TokenizerError>>,
}

/// One token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The bytes of the text, before normalisation, that it came from; `0..0` if it came from none.
    pub bytes: Range<usize>,
}

/// Why a tokenizer cannot be made or used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerError {
    /// The file cannot be read.
    Unreadable {
        /// Its path.
        path: String,
        /// What the system says.
        message: String,
    },
    /// The text is not JSON.
    Json {
        /// What is wrong, and where.
        message: String,
    },
    /// The JSON is not a tokenizer.
    Definition {
        /// What is wrong.
        message: String,
    },
    /// The definition is larger than any that is accepted.
    Limit {
        /// The part that exceeds a limit.
        part: String,
        /// The limit and what was found.
        message: String,
    },
    /// The definition states truncation or padding, which no call does.
    Setting {
        /// `truncation` or `padding`.
        name: &'static str,
        /// What it states.
        stated: String,
    },
    /// The file is not a SentencePiece model, or one that is not understood.
    SentencePiece {
        /// What is wrong.
        message: String,
    },
    /// The definition leaves out merges at random, so that it names no one sequence of tokens.
    Random {
        /// The probability of leaving out a merge.
        dropout: String,
    },
    /// The definition failed on a text or on ids.
    Failed {
        /// What it says.
        message: String,
    },
    /// This build has no tokenizers.
    NotBuilt,
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenizerError::Unreadable { path, message } => write!(f, "cannot read `{path}`: {message}"),
            TokenizerError::Json { message } => write!(f, "the tokenizer is not JSON: {message}"),
            TokenizerError::Definition { message } => write!(f, "the JSON is not a tokenizer: {message}"),
            TokenizerError::Limit { part, message } => {
                write!(f, "`{part}` of the tokenizer exceeds a limit: {message}")
            }
            TokenizerError::Setting { name, stated } => write!(
                f,
                "the tokenizer states `{name}` ({stated}), but texts are encoded whole and without padding: set `{name}` to null, or \
                 read the definition with `whole_texts` to ignore the setting and {} the rows yourself",
                if *name == "padding" { "pad" } else { "cut" }
            ),
            TokenizerError::SentencePiece { message } => {
                write!(f, "cannot read the SentencePiece model: {message}")
            }
            TokenizerError::Random { dropout } => {
                write!(f, "a tokenizer with dropout {dropout} is random; set `dropout` to null")
            }
            TokenizerError::Failed { message } => write!(f, "the tokenizer failed: {message}"),
            TokenizerError::NotBuilt => f.write_str("lz-ops was built without its feature `tokenizers`"),
        }
    }
}

impl std::error::Error for TokenizerError {}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`. One that states truncation or padding is refused, because calls encode whole texts.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::read(json, Settings::Refused)
    }

    /// The same, but truncation and padding are ignored: for callers that want whole texts.
    pub fn whole_texts(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::read(json, Settings::Ignored)
    }

    fn read(json: &[u8], settings: Settings) -> Result<Tokenizer, TokenizerError> {
        limits::check_size(json.len())?;
        let mut value = parse(json)?;
        limits::check(&value)?;
        let dropout =
            value.pointer("/model/dropout").filter(|dropout| dropout.as_f64().is_some_and(|p| p != 0.0));
        if let Some(dropout) = dropout {
            return Err(TokenizerError::Random { dropout: dropout.to_string() });
        }
        let plain = settings.apply(&mut value)?;
        let digest = digest::of(&value);
        if let Some(same) = known::find(digest_bits(&digest)).filter(|known| known.shared.digest == digest) {
            return Ok(same);
        }
        // Whoever reads the definition again, another process too, reads it without the settings.
        let json = if plain { json.to_vec() } else { value.to_string().into_bytes() };
        let meaning = Meaning::parse(&value, &json)?;
        let shared = Shared {
            meaning,
            json: json.into(),
            digest,
            parsed: Mutex::new(Some(value)),
            prepared: OnceLock::new(),
            splitting: OnceLock::new(),
        };
        let tokenizer = Tokenizer { shared: Arc::new(shared) };
        known::remember(&tokenizer);
        Ok(tokenizer)
    }

    /// Reads the content of a SentencePiece `.model` file.
    pub fn from_sentencepiece(model: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_json(meaning::sentencepiece_json(model).as_bytes())
    }

    /// Reads a SentencePiece model if the file's name ends in `.model`, else a `tokenizer.json` as [`Tokenizer::from_json`] does.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        let path = path.as_ref();
        let content = read_file(path)?;
        if path.extension().is_some_and(|extension| extension == "model") {
            return Tokenizer::from_sentencepiece(&content);
        }
        Tokenizer::from_json(&content)
    }

    /// Reads a `tokenizer.json`, as [`Tokenizer::whole_texts`] does.
    pub fn whole_texts_from_file(path: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::whole_texts(&read_file(path.as_ref())?)
    }

    /// The same tokenizer for texts from outside: special tokens that are written in a text are encoded as the plain text they are,
    /// so that no text can contain one. Those that the post-processor adds are added as before. It has a digest of its own.
    pub fn splitting_special_tokens(&self) -> Result<Tokenizer, TokenizerError> {
        let made = self.shared.splitting.get_or_init(|| {
            let json = meaning::split_json(&self.shared.json)?;
            json.map(|json| Tokenizer::from_json(json.as_bytes())).transpose()
        });
        Ok(made.clone()?.unwrap_or_else(|| self.clone()))
    }

    /// The living tokenizer with [these bits](lz_core::context::digest_bits) of a digest, for whoever judges by contexts.
    pub fn of_digest_bits(bits: u64) -> Option<Tokenizer> {
        known::find(bits)
    }

    /// What a backend has made of this tokenizer, made now if it is not there; it lives as long as the tokenizer. `None` if
    /// another backend was there first with something of another type.
    pub fn prepared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.shared.prepared.get_or_init(|| Box::new(make())).downcast_ref()
    }

    fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// The tokenizer behind a handle, or why kernels that know only this type cannot use it.
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

    /// The tokens of a text, with those of the post-processor if asked for. Nothing is truncated or padded.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        self.shared.meaning.encode(text, add_special_tokens)
    }

    /// The text of some ids; ids that it does not have contribute nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        self.shared.meaning.decode(ids, skip_special_tokens)
    }

    /// The parsed definition. It is kept for the first who asks and parsed again for others, because it takes several times the
    /// memory of its text.
    pub fn parsed(&self) -> Result<serde_json::Value, TokenizerError> {
        let kept = self.shared.parsed.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.map_or_else(|| parse(self.json()), Ok)
    }

    /// Whether it is a SentencePiece model.
    pub fn is_sentencepiece(&self) -> bool {
        matches!(self.shared.meaning, Meaning::SentencePiece(_))
    }

    /// What it was made from, for kernels that read definitions themselves.
    pub fn json(&self) -> &[u8] {
        &self.shared.json
    }
}

/// What becomes of truncation and padding that a definition states.
#[derive(Clone, Copy)]
enum Settings {
    Refused,
    Ignored,
}

impl Settings {
    /// Whether the definition states neither; they are removed if they are ignored.
    fn apply(self, definition: &mut serde_json::Value) -> Result<bool, TokenizerError> {
        let mut plain = true;
        for name in ["truncation", "padding"] {
            let Some(stated) = definition.get_mut(name).filter(|stated| !stated.is_null()) else { continue };
            match self {
                Settings::Refused => {
                    return Err(TokenizerError::Setting { name, stated: stated.to_string() });
                }
                Settings::Ignored => *stated = serde_json::Value::Null,
            }
            plain = false;
        }
        Ok(plain)
    }
}

fn parse(json: &[u8]) -> Result<serde_json::Value, TokenizerError> {
    serde_json::from_slice(json).map_err(|error| TokenizerError::Json { message: error.to_string() })
}

/// The bytes of a definition.
fn read_file(path: &Path) -> Result<Vec<u8>, TokenizerError> {
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
