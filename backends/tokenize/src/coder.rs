//! What a candidate is: something that encodes and decodes for one tokenizer, and says for which it can.

use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

/// Tokens of some texts, one text after the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<i32>,
    /// Two numbers a token, if they are wanted: its first byte and the byte after its last.
    pub offsets: Option<Vec<i64>>,
    /// How many ids there are after each text.
    pub ends: Vec<i64>,
}

impl Encoded {
    /// Empty, with room for the tokens of so many bytes.
    pub fn for_bytes(bytes: usize, offsets: bool) -> Encoded {
        let ids = Vec::with_capacity(bytes / 3 + 8);
        Encoded { ids, offsets: offsets.then(Vec::new), ends: Vec::new() }
    }

    /// Adds a token.
    #[inline]
    pub fn push(&mut self, id: u32, start: usize, end: usize) {
        self.ids.push(id as i32);
        if let Some(offsets) = &mut self.offsets {
            offsets.extend([start as i64, end as i64]);
        }
    }

    /// Ends a text.
    pub fn end_text(&mut self) {
        self.ends.push(self.ids.len() as i64);
    }

    /// Adds the texts of another.
    pub fn append(&mut self, other: &Encoded) {
        let before = self.ids.len() as i64;
        self.ids.extend_from_slice(&other.ids);
        if let (Some(offsets), Some(more)) = (&mut self.offsets, &other.offsets) {
            offsets.extend_from_slice(more);
        }
        self.ends.extend(other.ends.iter().map(|end| before + end));
    }
}

/// What a candidate is tried on before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Nothing: it is the definition itself.
    None,
    /// Texts: it classifies characters by the tables of the definition.
    Texts,
    /// Texts, and every code point in the contexts of [`crate::code_points`]: it has Unicode tables of its own.
    CodePoints,
}

/// Encodes and decodes for one tokenizer.
pub trait Coder: Send + Sync + Sized + 'static {
    /// Whether it can tell where a token came from.
    const OFFSETS: bool;
    /// Whether it can decode.
    const DECODES: bool;
    /// The kind of model that it is for, if it is for one.
    const MODEL: Option<&'static str>;
    /// What it is tried on.
    const TRIAL: Trial;

    /// For a tokenizer, or why it cannot be like it: the comparison of structure. Whether it is equal is shown by trying.
    fn build(tokenizer: &Tokenizer, definition: &Value) -> Result<Self, Reason>;

    /// Adds the tokens of some texts.
    fn encode(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError>;

    /// The text of some ids.
    fn decode(&self, tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError>;
}

/// Adds the tokens of one text as the definition itself gives them.
pub fn encode_by_definition(
    tokenizer: &Tokenizer,
    text: &str,
    special: bool,
    out: &mut Encoded,
) -> Result<(), KernelError> {
    let tokens = tokenizer.encode(text, special).map_err(|error| KernelError::failed(error.to_string()))?;
    for token in tokens {
        if i32::try_from(token.id).is_err() {
            return Err(KernelError::failed(format!("token id {} does not fit 32 bits", token.id)));
        }
        out.push(token.id, token.bytes.start, token.bytes.end);
    }
    out.end_text();
    Ok(())
}
