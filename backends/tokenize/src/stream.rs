//! Streaming decoding: ids go in one at a time, text comes out as soon as it cannot change.

use lz_ops::tokenizer::{Tokenizer, TokenizerError};

/// Decodes a sequence of ids step by step. Each step returns the text that cannot change any more, which is empty while a character is
/// incomplete. The concatenated texts are what decoding all ids at once returns. The exception are byte tokens that are not UTF-8, of
/// decoders with byte fallback: all at once, they also replace valid characters next to them.
pub struct TextStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Ids whose text was returned, and the ids since then. The former are the context of the latter: whether a token begins with a space
    /// may depend on the token before it.
    ids: Vec<u32>,
    /// Number of ids that are context.
    context: usize,
    /// The beginning of the text of `ids` that was returned.
    returned: String,
}

/// U+FFFD at the end that may still become characters: three bytes of an incomplete one and, with byte fallback, the four bytes of the
/// character before it.
const MAX_INCOMPLETE: usize = 7;
/// Ids that are decoded together at most, if none completes a character.
const MAX_IDS: usize = 256;

impl TextStream {
    /// A stream without ids. With `skip_special`, special tokens have no text.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> TextStream {
        TextStream {
            tokenizer: tokenizer.clone(),
            skip_special,
            ids: Vec::new(),
            context: 0,
            returned: String::new(),
        }
    }

    /// Adds an id. Returns the text that it completes.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids, self.skip_special).inspect_err(|_| {
            self.ids.pop();
        })?;
        let trailing =
            text.chars().rev().take_while(|character| *character == char::REPLACEMENT_CHARACTER).count();
        let is_endless = self.ids.len() - self.context >= MAX_IDS;
        let held = if is_endless { 0 } else { trailing.min(MAX_INCOMPLETE) };
        let complete = &text[..text.len() - held * char::REPLACEMENT_CHARACTER.len_utf8()];
        if complete.len() < text.len() {
            // Nothing is returned as long as the text before changes.
            let fresh = complete.strip_prefix(self.returned.as_str()).unwrap_or_default().to_owned();
            self.returned.push_str(&fresh);
            return Ok(fresh);
        }
        let fresh = self.rest(&text)?;
        // Ids without text, such as special tokens, are no context.
        if !fresh.is_empty() {
            self.ids.drain(..self.context);
            self.context = self.ids.len();
            self.returned = self.tokenizer.decode(&self.ids, self.skip_special)?;
        }
        Ok(fresh)
    }

    /// Ends the text: returns what is left, with U+FFFD for an incomplete character. The stream can be used for another text then.
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let text = self.tokenizer.decode(&self.ids, self.skip_special)?;
        let rest = self.rest(&text)?;
        self.ids.clear();
        self.returned.clear();
        self.context = 0;
        Ok(rest)
    }

    /// The part of the text of all ids that was not returned before.
    fn rest(&self, text: &str) -> Result<String, TokenizerError> {
        match text.strip_prefix(self.returned.as_str()) {
            Some(rest) => Ok(rest.to_owned()),
            None => self.tokenizer.decode(&self.ids[self.context..], self.skip_special),
        }
    }
}
