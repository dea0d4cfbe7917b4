//! From ids back to a text: U+2581 becomes a space, the space that was put before the text goes, and runs of byte pieces become
//! characters.

use super::SentencePiece;
use super::normalizer::valid_character;
use super::pieces::{Kind, byte_of};
use super::trie::Trie;
use crate::tokenizer::TokenizerError;

const SPACE: &str = "\u{2581}";

impl SentencePiece {
    /// The text of some ids. Control pieces have none; ids that the model does not have contribute nothing.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let (mut text, mut bytes) = (String::new(), Vec::new());
        let strips = self.normalizer.strips_first_space();
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
            let one_space_gone = stripped.is_some() && !strips.all;
            at_start &= !one_space_gone && text.is_empty();
        }
        append_bytes(&mut bytes, &mut text);
        let Some(denormalizer) = &self.denormalizer else { return Ok(text) };
        let text = denormalizer.normalize(&Trie::new(Vec::new()), text.as_bytes(), None);
        String::from_utf8(text)
            .map_err(|_| TokenizerError::Failed { message: "the denormalized text is not UTF-8".to_owned() })
    }
}

/// Adds the characters of some bytes, U+FFFD for each byte that belongs to none.
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
