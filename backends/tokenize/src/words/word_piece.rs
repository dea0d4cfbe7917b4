//! WordPiece: greedy longest match from the start of a word.

use lz_core::Reason;
use serde_json::Value;

use super::model::{Model, Piece, unsupported_model};
use super::trie::{ROOT, Trie};
use crate::definition::{self, Vocabulary};
use crate::memory::OutOfMemory;

/// The model of one tokenizer.
pub struct WordPiece {
    trie: Trie,
    /// The trie node of the continuation prefix (`##`); `None` if no token has it.
    continuation: Option<u32>,
    unknown: u32,
    /// Words with more characters become the unknown token.
    max_characters: usize,
}

impl Model for WordPiece {
    type Scratch = ();
    const KIND: &'static str = definition::WORD_PIECE;

    fn read(model: &Value) -> Result<(WordPiece, Vocabulary), Reason> {
        if model["type"] != "WordPiece" {
            return Err(unsupported_model("a WordPiece model", model["type"].to_string()));
        }
        let vocabulary = definition::vocabulary(&model["vocab"])?;
        let wrong = |key: &str| unsupported_model(&format!("`{key}`"), model[key].to_string());
        let name = model["unk_token"].as_str().ok_or_else(|| wrong("unk_token"))?;
        let unknown = vocabulary.iter().find(|(token, _)| token == name).map(|(_, id)| *id);
        let prefix =
            model["continuing_subword_prefix"].as_str().ok_or_else(|| wrong("continuing_subword_prefix"))?;
        let max_characters =
            model["max_input_chars_per_word"].as_u64().ok_or_else(|| wrong("max_input_chars_per_word"))?;
        let trie = Trie::new(vocabulary.iter().map(|(token, id)| (token.as_bytes(), *id)));
        let word_piece = WordPiece {
            continuation: trie.node(prefix.as_bytes()),
            trie,
            unknown: unknown
                .ok_or_else(|| unsupported_model("`unk_token` in the vocabulary", format!("{name:?}")))?,
            max_characters: max_characters as usize,
        };
        Ok((word_piece, vocabulary))
    }

    fn splits_at_spaces(&self) -> bool {
        false
    }

    fn tokenize_word(&self, word: &str, _: &mut (), pieces: &mut Vec<Piece>) -> Result<(), OutOfMemory> {
        let (bytes, first) = (word.as_bytes(), pieces.len());
        let mut node = Some(ROOT);
        let mut start = if bytes.len() > self.max_characters && word.chars().count() > self.max_characters {
            None
        } else {
            Some(0)
        };
        while let Some(from) = start.filter(|from| *from < bytes.len()) {
            let mut longest = None;
            if let Some(node) = node {
                self.trie.prefixes(node, &bytes[from..], |length, id| longest = Some((from + length, id)));
            }
            start = longest.map(|(end, id)| {
                pieces.push(Piece::new(id, from, end));
                end
            });
            node = self.continuation;
        }
        if start.is_none() {
            pieces.truncate(first);
            pieces.push(Piece::new(self.unknown, 0, bytes.len()));
        }
        Ok(())
    }
}
