//! WordPiece: of a word, the longest token that begins it, then the longest that continues it, and so on.

use lz_core::Reason;
use serde_json::Value;

use super::model::{Model, Piece, unlike};
use super::trie::{ROOT, Trie};
use crate::definition::{self, Vocabulary};

/// The model of one tokenizer.
pub struct WordPiece {
    trie: Trie,
    /// Where tokens that continue a word begin; none if there is no such token.
    continued: Option<u32>,
    unknown: u32,
    /// Words of more characters are unknown.
    most: usize,
}

impl Model for WordPiece {
    type Scratch = ();
    const KIND: &'static str = definition::WORD_PIECE;

    fn read(model: &Value) -> Result<(WordPiece, Vocabulary), Reason> {
        if model["type"] != "WordPiece" {
            return Err(unlike("a WordPiece model", model["type"].to_string()));
        }
        let vocabulary = definition::vocabulary(&model["vocab"])?;
        let wrong = |what: &str| unlike(what, model[what].to_string());
        let name = model["unk_token"].as_str().ok_or_else(|| wrong("unk_token"))?;
        let unknown = vocabulary.iter().find(|(token, _)| token == name).map(|(_, id)| *id);
        let prefix =
            model["continuing_subword_prefix"].as_str().ok_or_else(|| wrong("continuing_subword_prefix"))?;
        let most =
            model["max_input_chars_per_word"].as_u64().ok_or_else(|| wrong("max_input_chars_per_word"))?;
        let trie = Trie::new(vocabulary.iter().map(|(token, id)| (token.as_bytes(), *id)));
        let made = WordPiece {
            continued: trie.place(prefix.as_bytes()),
            trie,
            unknown: unknown.ok_or_else(|| unlike("a token for unknown words", name))?,
            most: most as usize,
        };
        Ok((made, vocabulary))
    }

    fn cuts_at_spaces(&self) -> bool {
        false
    }

    fn cut(&self, word: &str, _: &mut (), pieces: &mut Vec<Piece>) {
        let (bytes, first) = (word.as_bytes(), pieces.len());
        let mut place = Some(ROOT);
        let mut start =
            if bytes.len() > self.most && word.chars().count() > self.most { None } else { Some(0) };
        while let Some(from) = start.filter(|from| *from < bytes.len()) {
            let mut longest = None;
            if let Some(place) = place {
                self.trie.prefixes(place, &bytes[from..], |length, id| longest = Some((from + length, id)));
            }
            start = longest.map(|(end, id)| {
                pieces.push(Piece::new(id, from, end));
                end
            });
            place = self.continued;
        }
        if start.is_none() {
            pieces.truncate(first);
            pieces.push(Piece::new(self.unknown, 0, bytes.len()));
        }
    }
}
