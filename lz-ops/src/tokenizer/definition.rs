//! With `direct`, the only file that uses the `tokenizers` crate. It must not depend on tensors.

use super::json::Json;
use super::{Token, TokenizerError, catch_panic, direct};

/// A parsed `tokenizer.json`.
pub struct Definition(tokenizers::Tokenizer);

impl Definition {
    /// From a parsed definition of the common form, without truncation and padding; `None` if the text must be parsed instead, which
    /// also returns the errors.
    pub fn build(tree: &Json<'_>, split_special_tokens: bool) -> Option<Definition> {
        let mut tokenizer = catch_panic(|| direct::build(tree)).ok()??;
        tokenizer.set_encode_special_tokens(split_special_tokens);
        Some(Definition(tokenizer))
    }

    /// Parses a `tokenizer.json` without truncation and padding.
    pub fn parse(json: &[u8], split_special_tokens: bool) -> Result<Definition, TokenizerError> {
        catching_panics(|| {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)
                .map_err(|error| TokenizerError::Definition { message: error.to_string() })?;
            tokenizer.set_encode_special_tokens(split_special_tokens);
            Ok(Definition(tokenizer))
        })
    }

    /// Tokens with their byte ranges.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        catching_panics(|| {
            // `encode` returns byte offsets; `encode_char_offsets` would return character offsets.
            let encoding = self.0.encode(text, add_special_tokens).map_err(failed)?;
            let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
            Ok(tokens.map(|(&id, &(start, end))| Token { id, bytes: start..end }).collect())
        })
    }

    /// The decoded text.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        let decoded_ids: Vec<u32> =
            ids.iter().copied().filter(|&id| self.has_text(id, skip_special_tokens)).collect();
        // Some decoders fail on an empty list.
        if decoded_ids.is_empty() {
            return Ok(String::new());
        }
        catching_panics(|| self.0.decode(&decoded_ids, skip_special_tokens).map_err(failed))
    }

    /// The token of an id, of the model or added.
    pub fn token_of(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    /// The id of a token, of the model or added.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    /// The number of tokens, with added ones.
    pub fn vocabulary_size(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// Whether an id contributes to the decoded text.
    fn has_text(&self, id: u32, skip_special_tokens: bool) -> bool {
        match self.0.id_to_token(id) {
            Some(token) => !(skip_special_tokens && self.0.get_added_vocabulary().is_special_token(&token)),
            None => false,
        }
    }
}

fn failed(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Failed { message: error.to_string() }
}

/// The crate panics on some inconsistent definitions. No inconsistent state is reused: parsing builds a new value, encoding and decoding
/// modify only caches.
fn catching_panics<T>(work: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    catch_panic(work).unwrap_or_else(|message| {
        let message = format!("the `tokenizers` library cannot use this definition: {message}");
        Err(TokenizerError::Failed { message })
    })
}
