//! Replaces `definition.rs` in builds without the feature `tokenizers`: parsing always fails.

use super::json::Json;
use super::{Token, TokenizerError};

/// Uninhabited.
pub enum Definition {}

impl Definition {
    /// Always `None`.
    pub fn build(_tree: &Json<'_>, _split_special_tokens: bool) -> Option<Definition> {
        None
    }

    /// Always fails with [`TokenizerError::NotBuilt`].
    pub fn parse(_json: &[u8], _split_special_tokens: bool) -> Result<Definition, TokenizerError> {
        Err(TokenizerError::NotBuilt)
    }

    /// Unreachable.
    pub fn encode(&self, _text: &str, _add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        match *self {}
    }

    /// Unreachable.
    pub fn decode(&self, _ids: &[u32], _skip_special_tokens: bool) -> Result<String, TokenizerError> {
        match *self {}
    }

    /// Unreachable.
    pub fn token_of(&self, _id: u32) -> Option<String> {
        match *self {}
    }

    /// Unreachable.
    pub fn id_of(&self, _token: &str) -> Option<u32> {
        match *self {}
    }

    /// Unreachable.
    pub fn vocabulary_size(&self) -> usize {
        match *self {}
    }
}
