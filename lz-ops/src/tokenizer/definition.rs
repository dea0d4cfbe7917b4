//! The one file that names the `tokenizers` crate. It must not know tensors.

use super::{Token, TokenizerError, contained};

/// A parsed `tokenizer.json`.
pub struct Definition(tokenizers::Tokenizer);

impl Definition {
    /// Parses it. It states neither truncation nor padding.
    pub fn parse(json: &[u8], split_special_tokens: bool) -> Result<Definition, TokenizerError> {
        guarded(|| {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)
                .map_err(|error| TokenizerError::Definition { message: error.to_string() })?;
            tokenizer.set_encode_special_tokens(split_special_tokens);
            Ok(Definition(tokenizer))
        })
    }

    /// Tokens and the bytes they came from.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        guarded(|| {
            // This form of the call gives offsets in bytes; another one would give characters.
            let encoding = self.0.encode(text, add_special_tokens).map_err(failed)?;
            let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
            Ok(tokens.map(|(&id, &(start, end))| Token { id, bytes: start..end }).collect())
        })
    }

    /// The decoder's text.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        let kept: Vec<u32> = ids.iter().copied().filter(|&id| self.keeps(id, skip_special_tokens)).collect();
        // Some decoders cannot do with nothing.
        if kept.is_empty() {
            return Ok(String::new());
        }
        guarded(|| self.0.decode(&kept, skip_special_tokens).map_err(failed))
    }

    /// Whether an id contributes to a text.
    fn keeps(&self, id: u32, skip_special_tokens: bool) -> bool {
        match self.0.id_to_token(id) {
            Some(token) => !(skip_special_tokens && self.0.get_added_vocabulary().is_special_token(&token)),
            None => false,
        }
    }
}

fn failed(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Failed { message: error.to_string() }
}

/// The crate panics on some definitions that contradict themselves. Nothing that a panic could leave half done is used again: parsing
/// makes a new value, encoding and decoding change only caches.
fn guarded<T>(work: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    contained(work).unwrap_or_else(|message| {
        let message = format!("the `tokenizers` library cannot use this definition: {message}");
        Err(TokenizerError::Failed { message })
    })
}
