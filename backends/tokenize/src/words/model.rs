//! The interface of a model, which encodes one word.

use lz_core::{Reason, ReasonCode};
use serde_json::Value;

use super::trie::Trie;
use crate::definition::Vocabulary;
use crate::memory::OutOfMemory;

/// A token of a word and its byte range in the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Token id.
    pub id: u32,
    /// Start offset.
    pub start: u32,
    /// End offset (exclusive).
    pub end: u32,
}

impl Piece {
    /// From offsets in a word.
    pub fn new(id: u32, start: usize, end: usize) -> Piece {
        Piece { id, start: start as u32, end: end as u32 }
    }
}

/// A model of one tokenizer.
pub trait Model: Send + Sync + Sized + 'static {
    /// Buffers that are reused between words.
    type Scratch: Default + Send + 'static;

    /// The model kind.
    const KIND: &'static str;

    /// Parses the model of a definition, or returns the reason why it is not supported.
    fn read(model: &Value) -> Result<(Self, Vocabulary), Reason>;

    /// Whether a text without a pretokenizer may be split before runs of spaces without changing its tokens.
    fn splits_at_spaces(&self) -> bool;

    /// Appends the tokens of a nonempty word; there is room for one per byte.
    fn tokenize_word(
        &self,
        word: &str,
        scratch: &mut Self::Scratch,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), OutOfMemory>;
}

/// The reason why a model is not supported.
pub fn unsupported_model(required: &str, found: impl Into<String>) -> Reason {
    Reason::new(ReasonCode::TokenizerModelUnsupported).argument("tokenizer").required(required).found(found)
}

/// A token with spaces instead of U+2581, as words have them. `None` for a token that contains a space, which no word can match.
pub fn metaspace_to_space(token: &str) -> Option<String> {
    (!token.contains(' ')).then(|| token.replace('\u{2581}', " "))
}

/// The ids of the byte fallback tokens `<0x00>` to `<0xFF>`.
pub fn byte_tokens(trie: &Trie) -> Result<Box<[u32; 256]>, Reason> {
    let mut bytes = Box::new([0; 256]);
    for (byte, id) in bytes.iter_mut().enumerate() {
        let name = format!("<0x{byte:02X}>");
        *id = trie.find(name.as_bytes()).ok_or_else(|| {
            unsupported_model("a byte fallback token for every byte", format!("no token {name}"))
        })?;
    }
    Ok(bytes)
}
