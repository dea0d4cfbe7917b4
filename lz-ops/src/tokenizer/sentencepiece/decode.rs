//! Decoding: U+2581 becomes a space, the dummy prefix is removed, and runs of byte pieces become characters.

use super::SentencePiece;
use super::normalizer::valid_character;
use super::pieces::{Kind, byte_of};
use super::trie::Trie;
use crate::tokenizer::TokenizerError;

const SPACE: &str = "\u{2581}";

impl SentencePiece {
    /// The text of ids. Control pieces have no text; unknown ids are skipped.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let (mut text, mut bytes) = (String::new(), Vec::new());
        let strips = self.normalizer.stripped_leading_spaces();
        let mut at_start = true;
        for piece in ids.iter().filter_map(|id| self.pieces.get(*id)) {
            if piece.kind == Kind::Byte {
                bytes.extend(byte_of(&piece.text));
                continue;
            }
            append_bytes(&mut bytes, &mut text);
            at_start &= text.is_empty();
            if piece.kind == Kind::Control {
                continue;
            }
            let stripped = piece.text.strip_prefix(SPACE).filter(|_| at_start && strips.any());
            match piece.kind {
                Kind::Unknown => text.push_str(&self.unknown_surface),
                _ => text.push_str(&stripped.unwrap_or(&piece.text).replace(SPACE, " ")),
            }
            let stripped_dummy_prefix = stripped.is_some() && !strips.all;
            at_start &= !stripped_dummy_prefix && text.is_empty();
        }
        append_bytes(&mut bytes, &mut text);
        let Some(denormalizer) = &self.denormalizer else { return Ok(text) };
        let text = denormalizer.normalize(&Trie::new(Vec::new()), text.as_bytes(), None);
        String::from_utf8(text).map_err(|_| TokenizerError::Failed {
            message: "the output of the denormalizer is not UTF-8".to_owned(),
        })
    }
}

/// Appends the characters of a byte run, with U+FFFD for each invalid byte.
fn append_bytes(bytes: &mut Vec<u8>, text: &mut String) {
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let length = valid_character(rest);
        match length.and_then(|length| std::str::from_utf8(&rest[..length]).ok()) {
            Some(character) => text.push_str(character),
            None => text.push('\u{fffd}'),
        }
        rest = &rest[length.unwrap_or(1)..];
    }
    bytes.clear();
}
