//! Stands for the `tokenizers` crate where this crate was built without it: there is no definition, ever.

use super::{Token, TokenizerError};

/// No value of this type exists.
pub enum Definition {}

impl Definition {
    /// Says that this build has no tokenizers.
    pub fn parse(_json: &[u8], _split_special_tokens: bool) -> Result<Definition, TokenizerError> {
        Err(TokenizerError::NotBuilt)
    }

    /// Cannot be called.
    pub fn encode(&self, _text: &str, _add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        match *self {}
    }

    /// Cannot be called.
    pub fn decode(&self, _ids: &[u32], _skip_special_tokens: bool) -> Result<String, TokenizerError> {
        match *self {}
    }
}
