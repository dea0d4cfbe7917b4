//! What a model does: it cuts one word into tokens.

use lz_core::{Reason, ReasonCode};
use serde_json::Value;

use super::trie::Trie;
use crate::definition::Vocabulary;

/// A token of a word, and the bytes of the word that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its id.
    pub id: u32,
    /// Its first byte.
    pub start: u32,
    /// The byte after its last.
    pub end: u32,
}

impl Piece {
    /// From places in a word.
    pub fn new(id: u32, start: usize, end: usize) -> Piece {
        Piece { id, start: start as u32, end: end as u32 }
    }
}

/// A model of one tokenizer.
pub trait Model: Send + Sync + Sized + 'static {
    /// What it works with and need not make anew for every word.
    type Scratch: Default + Send + 'static;

    /// What kind it is.
    const KIND: &'static str;

    /// From the model of a definition, or why it is another.
    fn read(model: &Value) -> Result<(Self, Vocabulary), Reason>;

    /// Whether texts that no pre-tokeniser cuts may be cut where spaces follow something else.
    fn cuts_at_spaces(&self) -> bool;

    /// Adds the tokens of a word, which is not empty.
    fn cut(&self, word: &str, scratch: &mut Self::Scratch, pieces: &mut Vec<Piece>);
}

/// The model is something else than what is asked for.
pub fn unlike(required: &str, found: impl Into<String>) -> Reason {
    Reason::new(ReasonCode::TokenizerModelUnsupported).argument("tokenizer").required(required).found(found)
}

/// The bytes of a token as words have them: spaces where definitions write U+2581. `None` for one that no word can hold, because it
/// has a space of its own.
pub fn spaced(token: &str) -> Option<String> {
    (!token.contains(' ')).then(|| token.replace('\u{2581}', " "))
}

/// The tokens that stand for single bytes where nothing else does.
pub fn byte_tokens(trie: &Trie) -> Result<Box<[u32; 256]>, Reason> {
    let mut bytes = Box::new([0; 256]);
    for (byte, id) in bytes.iter_mut().enumerate() {
        let name = format!("<0x{byte:02X}>");
        *id = trie
            .find(name.as_bytes())
            .ok_or_else(|| unlike("a token for every byte", format!("none for {name}")))?;
    }
    Ok(bytes)
}
