//! Decodes ids. The text of each token is computed with the definition's own decoder.

use lz_core::{Reason, ReasonCode};
use serde_json::Value;
use tokenizers::{Decoder as _, DecoderWrapper};

use crate::definition::{AddedToken, Vocabulary, declined, kind, shown};
use crate::memory::{self, OutOfMemory};
use crate::vocabulary::Vocabulary as TokenTexts;

/// The decoder of one tokenizer.
pub struct Decoder {
    /// The text of each id as the first token.
    first: TokenTexts,
    /// The text of each id as a later token.
    later: TokenTexts,
    /// The byte of each byte token; empty without byte fallback.
    bytes: Vec<Option<u8>>,
    /// Whether one leading space of the text is removed.
    strips: bool,
    /// Sorted ids of special tokens.
    special: Vec<u32>,
}

impl Decoder {
    /// From the decoder of a definition, or the reason why it is not supported.
    pub fn new(value: &Value, vocabulary: &Vocabulary, added: &[AddedToken]) -> Result<Decoder, Reason> {
        let wrong = || {
            declined(
                ReasonCode::TokenizerModelUnsupported,
                "a decoder of WordPiece or SentencePiece",
                shown(value),
            )
        };
        let mut names: Vec<Option<&str>> = Vec::new();
        let all = vocabulary.iter().map(|(token, id)| (token.as_str(), *id));
        for (token, id) in all.chain(added.iter().map(|added| (added.content.as_str(), added.id))) {
            let size = names.len().max(id as usize + 1);
            names.resize(size, None);
            names[id as usize] = Some(token);
        }
        let mut special: Vec<u32> =
            added.iter().filter(|added| added.special).map(|added| added.id).collect();
        special.sort_unstable();
        let texts = |one: &dyn Fn(&str) -> Option<String>| {
            let texts: Option<Vec<Vec<u8>>> = names
                .iter()
                .map(|name| name.map_or(Some(String::new()), one).map(String::into_bytes))
                .collect();
            texts.map(|texts| TokenTexts::new(&texts)).ok_or_else(wrong)
        };
        match kind(value) {
            "WordPiece" | "Metaspace" => {
                let decoder: DecoderWrapper = serde_json::from_value(value.clone()).map_err(|_| wrong())?;
                let first = |token: &str| decoder.decode_chain(vec![token.to_owned()]).ok()?.pop();
                let later =
                    |token: &str| decoder.decode_chain(vec!["a".to_owned(), token.to_owned()]).ok()?.pop();
                Ok(Decoder {
                    first: texts(&first)?,
                    later: texts(&later)?,
                    bytes: Vec::new(),
                    strips: false,
                    special,
                })
            }
            "Sequence" => {
                let parts = value["decoders"].as_array().map(Vec::as_slice).unwrap_or_default();
                // Replacements in a token do not depend on other tokens.
                let replaced = parts.iter().take_while(|part| kind(part) == "Replace").count();
                let (replaces, rest) = parts.split_at(replaced);
                let strips = match rest {
                    [bytes, fuse] if kind(bytes) == "ByteFallback" && kind(fuse) == "Fuse" => false,
                    [bytes, fuse, strip] if kind(bytes) == "ByteFallback" && kind(fuse) == "Fuse" => {
                        let one_space = strip["content"] == " " && strip["start"] == 1 && strip["stop"] == 0;
                        if kind(strip) != "Strip" || !one_space {
                            return Err(wrong());
                        }
                        true
                    }
                    _ => return Err(wrong()),
                };
                let replace = serde_json::json!({"type": "Sequence", "decoders": replaces});
                let replace: DecoderWrapper = serde_json::from_value(replace).map_err(|_| wrong())?;
                let plain = |token: &str| replace.decode_chain(vec![token.to_owned()]).ok()?.pop();
                let bytes = names.iter().map(|name| byte_of(&plain((*name)?)?)).collect();
                Ok(Decoder { first: texts(&plain)?, later: texts(&plain)?, bytes, strips, special })
            }
            _ => Err(wrong()),
        }
    }

    /// Returns the text of ids.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, OutOfMemory> {
        let mut text: Vec<u8> = memory::with_capacity(ids.len() * 4)?;
        let (mut is_first, mut byte_run) = (true, Vec::new());
        for id in ids {
            let known = (*id as usize) < self.later.len();
            if !known || skip_special && self.special.binary_search(id).is_ok() {
                continue;
            }
            if let Some(Some(byte)) = self.bytes.get(*id as usize) {
                memory::reserve(&mut byte_run, 1)?;
                byte_run.push(*byte);
                continue;
            }
            flush_bytes(&mut byte_run, &mut text)?;
            let texts = if std::mem::take(&mut is_first) { &self.first } else { &self.later };
            let token = texts.bytes_of(*id);
            memory::reserve(&mut text, token.len())?;
            text.extend_from_slice(token);
        }
        flush_bytes(&mut byte_run, &mut text)?;
        if self.strips && text.first() == Some(&b' ') {
            text.remove(0);
        }
        memory::text_of(text)
    }
}

/// The byte of a byte token (`<0x0A>`).
fn byte_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| name.len() == 6)
}

/// Appends a run of byte tokens: as text if it is valid UTF-8, else one U+FFFD per byte.
fn flush_bytes(byte_run: &mut Vec<u8>, text: &mut Vec<u8>) -> Result<(), OutOfMemory> {
    memory::reserve(text, byte_run.len() * char::REPLACEMENT_CHARACTER.len_utf8())?;
    match std::str::from_utf8(byte_run) {
        Ok(_) => text.extend_from_slice(byte_run),
        Err(_) => byte_run.iter().for_each(|_| text.extend_from_slice("\u{fffd}".as_bytes())),
    }
    byte_run.clear();
    Ok(())
}
