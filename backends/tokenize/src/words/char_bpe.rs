//! Byte-pair merging of characters, as SentencePiece has it: a character that is no token is its bytes, or unknown.

use std::sync::{Mutex, PoisonError};

use lz_core::Reason;
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::model::{Model, Piece, byte_tokens, spaced, unlike};
use super::trie::Trie;
use crate::definition::{self, Vocabulary};
use crate::native::merge::{MOST_IDS, MOST_PAIRS, Merges};
use crate::native::vocabulary::Vocabulary as Known;

/// The model of one tokenizer.
pub struct CharBpe {
    merges: Merges,
    ascii: [Option<u32>; 128],
    wide: FxHashMap<char, u32>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: u32,
    /// Words that become one token.
    whole: Known,
    cuts_at_spaces: bool,
}

/// The tokens that a word begins as, how many bytes each has, and how many of them each token has in the end.
#[derive(Default)]
pub struct Symbols {
    ids: Vec<u32>,
    lengths: Vec<u32>,
    merged: Vec<(u32, u32)>,
}

impl Model for CharBpe {
    type Scratch = Symbols;
    const KIND: &'static str = definition::CHAR_BPE;

    fn read(model: &Value) -> Result<(CharBpe, Vocabulary), Reason> {
        let (vocabulary, merges) = definition::bpe_model(model)?;
        let flag = |name: &str| model[name].as_bool().unwrap_or(false);
        if !flag("fuse_unk") || flag("ignore_merges") {
            return Err(unlike("merges that count, and neighbours that are unknown as one token", "others"));
        }
        let size = vocabulary.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0);
        if size > MOST_IDS || merges.len() > MOST_PAIRS {
            return Err(unlike("fewer tokens and merges", format!("{size} and {}", merges.len())));
        }
        let name = model["unk_token"].as_str().unwrap_or_default();
        let unknown = vocabulary.iter().find(|(token, _)| token == name).map(|(_, id)| *id);
        let unknown = unknown.ok_or_else(|| unlike("a token for what is unknown", name))?;
        let known: Vec<(String, u32)> =
            vocabulary.iter().filter_map(|(token, id)| Some((spaced(token)?, *id))).collect();
        let trie = Trie::new(known.iter().map(|(token, id)| (token.as_bytes(), *id)));
        let mut pairs = Vec::with_capacity(merges.len());
        let mut joins_spaces = false;
        for (left, right) in &merges {
            let (Some(left), Some(right)) = (spaced(left), spaced(right)) else {
                return Err(unlike("merges without spaces of their own", format!("{left:?} and {right:?}")));
            };
            let id = |token: &str| {
                trie.find(token.as_bytes()).ok_or_else(|| unlike("a token for what every merge makes", token))
            };
            joins_spaces |= right.starts_with(' ') && !left.ends_with(' ');
            pairs.push((id(&left)?, id(&right)?, id(&format!("{left}{right}"))?));
        }
        let (mut ascii, mut wide) = ([None; 128], FxHashMap::default());
        for (token, id) in &known {
            let mut characters = token.chars();
            match (characters.next(), characters.next()) {
                (Some(character), None) if character.is_ascii() => ascii[character as usize] = Some(*id),
                (Some(character), None) => drop(wide.insert(character, *id)),
                _ => {}
            }
        }
        let bytes = flag("byte_fallback").then(|| byte_tokens(&trie)).transpose()?;
        let mut texts = vec![Vec::new(); size];
        for (token, id) in &known {
            texts[*id as usize] = token.as_bytes().to_vec();
        }
        let merges = Merges::of_symbols(&pairs);
        // A space that is no token would be unknown together with what is around it.
        let cuts_at_spaces = !joins_spaces && ascii[usize::from(b' ')].is_some();
        let mut made =
            CharBpe { merges, ascii, wide, bytes, unknown, whole: Known::new(&texts), cuts_at_spaces };
        for id in made.whole_words(&known) {
            made.whole.index(id);
        }
        Ok((made, vocabulary))
    }

    fn cuts_at_spaces(&self) -> bool {
        self.cuts_at_spaces
    }

    fn cut(&self, word: &str, symbols: &mut Symbols, pieces: &mut Vec<Piece>) {
        match self.whole.find(word.as_bytes()) {
            Some(id) => pieces.push(Piece::new(id, 0, word.len())),
            None => self.merge(word, symbols, pieces),
        }
    }
}

impl CharBpe {
    fn merge(&self, word: &str, symbols: &mut Symbols, pieces: &mut Vec<Piece>) {
        symbols.ids.clear();
        symbols.lengths.clear();
        symbols.merged.clear();
        let mut was_unknown = false;
        for character in word.chars() {
            let width = character.len_utf8() as u32;
            let known = if character.is_ascii() {
                self.ascii[character as usize]
            } else {
                self.wide.get(&character).copied()
            };
            match (known, &self.bytes) {
                (Some(id), _) => symbols.push(id, width),
                (None, Some(bytes)) => {
                    let mut encoded = [0; 4];
                    for byte in character.encode_utf8(&mut encoded).bytes() {
                        symbols.push(bytes[usize::from(byte)], 1);
                    }
                }
                (None, None) => match symbols.lengths.last_mut().filter(|_| was_unknown) {
                    Some(length) => *length += width,
                    None => symbols.push(self.unknown, width),
                },
            }
            was_unknown = known.is_none() && self.bytes.is_none();
        }
        self.merges.join(&symbols.ids, &mut symbols.merged);
        let (mut lengths, mut start) = (symbols.lengths.iter(), 0);
        for (id, count) in &symbols.merged {
            let end = start + lengths.by_ref().take(*count as usize).sum::<u32>();
            pieces.push(Piece { id: *id, start, end });
            start = end;
        }
    }

    /// Tokens that merging arrives at from their own characters.
    fn whole_words(&self, known: &[(String, u32)]) -> Vec<u32> {
        const STRIDE: usize = 4096;
        let chunks: Vec<Mutex<Vec<u32>>> = known.chunks(STRIDE).map(|_| Mutex::default()).collect();
        lz_pool::for_each(chunks.len(), &|chunk: usize| {
            let (mut symbols, mut pieces, mut found) = (Symbols::default(), Vec::new(), Vec::new());
            for (token, id) in
                known[chunk * STRIDE..].iter().take(STRIDE).filter(|(token, _)| !token.is_empty())
            {
                pieces.clear();
                self.merge(token, &mut symbols, &mut pieces);
                found.extend((pieces == [Piece::new(*id, 0, token.len())]).then_some(*id));
            }
            *chunks[chunk].lock().unwrap_or_else(PoisonError::into_inner) = found;
        });
        chunks
            .into_iter()
            .flat_map(|chunk| chunk.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }
}

impl Symbols {
    fn push(&mut self, id: u32, length: u32) {
        self.ids.push(id);
        self.lengths.push(length);
    }
}
