//! The interface of a candidate: encodes and decodes for one tokenizer, and rejects tokenizers that it does not support.

use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use crate::memory::{self, OutOfMemory};

/// The concatenated tokens of several texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<i32>,
    /// If requested: start and end byte offset of each token.
    pub offsets: Option<Vec<i64>>,
    /// Number of ids up to the end of each text.
    pub ends: Vec<i64>,
}

impl Encoded {
    /// Empty, with capacity for the tokens of `texts` texts of `bytes` bytes.
    pub fn for_bytes(bytes: usize, texts: usize, offsets: bool) -> Result<Encoded, OutOfMemory> {
        Ok(Encoded {
            ids: memory::with_capacity(bytes / 3 + 8)?,
            offsets: offsets.then(Vec::new),
            ends: memory::with_capacity(texts)?,
        })
    }

    /// Makes room for more tokens.
    #[inline]
    pub fn reserve(&mut self, tokens: usize) -> Result<(), OutOfMemory> {
        memory::reserve(&mut self.ids, tokens)?;
        self.offsets.as_mut().map_or(Ok(()), |offsets| memory::reserve(offsets, 2 * tokens))
    }

    /// Appends a token, for which there is room.
    #[inline]
    pub fn push(&mut self, id: u32, start: usize, end: usize) {
        self.ids.push(id as i32);
        if let Some(offsets) = &mut self.offsets {
            offsets.extend([start as i64, end as i64]);
        }
    }

    /// Marks the end of a text.
    pub fn end_text(&mut self) {
        self.ends.push(self.ids.len() as i64);
    }

    /// Appends the texts of another batch.
    pub fn append(&mut self, other: &Encoded) -> Result<(), OutOfMemory> {
        let before = self.ids.len() as i64;
        self.reserve(other.ids.len())?;
        memory::reserve(&mut self.ends, other.ends.len())?;
        self.ids.extend_from_slice(&other.ids);
        if let (Some(offsets), Some(more)) = (&mut self.offsets, &other.offsets) {
            offsets.extend_from_slice(more);
        }
        self.ends.extend(other.ends.iter().map(|end| before + end));
        Ok(())
    }
}

/// What a candidate is compared with the definition on before its first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EqualityTest {
    /// Nothing: the candidate is the definition itself.
    None,
    /// Texts: the candidate uses the Unicode tables of the definition.
    Texts,
    /// Texts, and every code point in the contexts of [`crate::code_points`]: the candidate has its own Unicode tables.
    CodePoints,
}

/// Encodes and decodes for one tokenizer.
pub trait Coder: Send + Sync + Sized + 'static {
    /// Whether it returns offsets.
    const OFFSETS: bool;
    /// Whether it decodes.
    const DECODES: bool;
    /// The model kind that it supports; `None` for any.
    const MODEL: Option<&'static str>;
    /// What it is compared with the definition on.
    const EQUALITY_TEST: EqualityTest;

    /// Builds the coder for a tokenizer, or returns the part of the definition that it does not support. Equality is verified
    /// separately.
    fn build(tokenizer: &Tokenizer, definition: &Value) -> Result<Self, Reason>;

    /// Appends the tokens of texts.
    fn encode(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError>;

    /// Returns the text of ids.
    fn decode(&self, tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError>;
}

/// Appends the tokens that the definition itself returns for a text.
pub fn encode_by_definition(
    tokenizer: &Tokenizer,
    text: &str,
    special: bool,
    out: &mut Encoded,
) -> Result<(), KernelError> {
    let tokens = tokenizer.encode(text, special).map_err(|error| KernelError::failed(error.to_string()))?;
    out.reserve(tokens.len())?;
    for token in tokens {
        if i32::try_from(token.id).is_err() {
            return Err(KernelError::failed(format!(
                "token id {} is too large; the largest supported id is {}",
                token.id,
                i32::MAX
            )));
        }
        out.push(token.id, token.bytes.start, token.bytes.end);
    }
    out.end_text();
    Ok(())
}

/// The reason of a candidate whose result differs from the definition's.
pub fn not_equal(text: &str, found: &str, expected: &str) -> Reason {
    let start: String = text.chars().take(24).collect();
    Reason::new(ReasonCode::TokenizerNotEqual)
        .argument("tokenizer")
        .required(format!("{expected} for {start:?}…"))
        .found(found)
}
