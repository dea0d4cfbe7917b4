//! Character-level BPE as in SentencePiece: characters outside the vocabulary become byte tokens (byte fallback) or the unknown token.

use std::sync::{Mutex, PoisonError};

use lz_core::{Reason, ReasonCode};
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::model::{Model, Piece, byte_tokens, metaspace_to_space, unsupported_model};
use super::trie::Trie;
use crate::byte_bpe::merge::{MAX_PAIRS, Merges};
use crate::definition::{self, Vocabulary};
use crate::memory::{self, OutOfMemory};
use crate::vocabulary::{MAX_IDS, Vocabulary as WholeWords};

/// The model of one tokenizer.
pub struct CharBpe {
    merges: Merges,
    ascii: [Option<u32>; 128],
    non_ascii: FxHashMap<char, u32>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: u32,
    /// Words that are one token.
    whole: WholeWords,
    splits_at_spaces: bool,
}

/// Scratch: the initial symbols of a word, their lengths in bytes, and the merged tokens with their symbol counts.
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
        if let Some(mark) = definition::end_mark(model) {
            let required = "no `end_of_word_suffix`";
            return Err(definition::declined(ReasonCode::TokenizerModelUnsupported, required, mark));
        }
        let flag = |name: &str| model[name].as_bool().unwrap_or(false);
        if !flag("fuse_unk") || flag("ignore_merges") {
            let found =
                format!("`fuse_unk` {} and `ignore_merges` {}", flag("fuse_unk"), flag("ignore_merges"));
            return Err(unsupported_model("`fuse_unk` true and `ignore_merges` false", found));
        }
        let size = vocabulary.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0);
        if size > MAX_IDS || merges.len() > MAX_PAIRS {
            let required = format!("at most {MAX_IDS} ids and {MAX_PAIRS} merges");
            return Err(unsupported_model(&required, format!("{size} ids and {} merges", merges.len())));
        }
        let name = model["unk_token"].as_str().unwrap_or_default();
        let unknown = vocabulary.iter().find(|(token, _)| token == name).map(|(_, id)| *id);
        let unknown =
            unknown.ok_or_else(|| unsupported_model("`unk_token` in the vocabulary", format!("{name:?}")))?;
        let spaced_tokens: Vec<(String, u32)> =
            vocabulary.iter().filter_map(|(token, id)| Some((metaspace_to_space(token)?, *id))).collect();
        let trie = Trie::new(spaced_tokens.iter().map(|(token, id)| (token.as_bytes(), *id)));
        let mut pairs = Vec::with_capacity(merges.len());
        let mut merges_across_spaces = false;
        for (left, right) in &merges {
            let (Some(left), Some(right)) = (metaspace_to_space(left), metaspace_to_space(right)) else {
                return Err(unsupported_model("merges without spaces", format!("{left:?} and {right:?}")));
            };
            let id = |token: &str| {
                trie.find(token.as_bytes()).ok_or_else(|| {
                    unsupported_model(
                        "a token for both sides and the result of every merge",
                        format!("none for {token:?}"),
                    )
                })
            };
            merges_across_spaces |= right.starts_with(' ') && !left.ends_with(' ');
            pairs.push((id(&left)?, id(&right)?, id(&format!("{left}{right}"))?));
        }
        let (mut ascii, mut non_ascii) = ([None; 128], FxHashMap::default());
        for (token, id) in &spaced_tokens {
            let mut characters = token.chars();
            match (characters.next(), characters.next()) {
                (Some(character), None) if character.is_ascii() => ascii[character as usize] = Some(*id),
                (Some(character), None) => drop(non_ascii.insert(character, *id)),
                _ => {}
            }
        }
        let bytes = flag("byte_fallback").then(|| byte_tokens(&trie)).transpose()?;
        let mut texts = vec![Vec::new(); size];
        for (token, id) in &spaced_tokens {
            texts[*id as usize] = token.as_bytes().to_vec();
        }
        let merges = Merges::of_symbols(&pairs);
        // A space outside the vocabulary would be fused with adjacent unknown characters.
        let splits_at_spaces = !merges_across_spaces && ascii[usize::from(b' ')].is_some();
        let mut char_bpe = CharBpe {
            merges,
            ascii,
            non_ascii,
            bytes,
            unknown,
            whole: WholeWords::new(&texts),
            splits_at_spaces,
        };
        for id in char_bpe.whole_words(&spaced_tokens)? {
            char_bpe.whole.index(id);
        }
        Ok((char_bpe, vocabulary))
    }

    fn splits_at_spaces(&self) -> bool {
        self.splits_at_spaces
    }

    fn tokenize_word(
        &self,
        word: &str,
        symbols: &mut Symbols,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), OutOfMemory> {
        match self.whole.find(word.as_bytes()) {
            Some(id) => pieces.push(Piece::new(id, 0, word.len())),
            None => self.merge(word, symbols, pieces)?,
        }
        Ok(())
    }
}

impl CharBpe {
    fn merge(&self, word: &str, symbols: &mut Symbols, pieces: &mut Vec<Piece>) -> Result<(), OutOfMemory> {
        symbols.clear_for(word.len())?;
        let mut after_unknown = false;
        for character in word.chars() {
            let width = character.len_utf8() as u32;
            let known = if character.is_ascii() {
                self.ascii[character as usize]
            } else {
                self.non_ascii.get(&character).copied()
            };
            match (known, &self.bytes) {
                (Some(id), _) => symbols.push(id, width),
                (None, Some(bytes)) => {
                    let mut encoded = [0; 4];
                    for byte in character.encode_utf8(&mut encoded).bytes() {
                        symbols.push(bytes[usize::from(byte)], 1);
                    }
                }
                (None, None) => match symbols.lengths.last_mut().filter(|_| after_unknown) {
                    Some(length) => *length += width,
                    None => symbols.push(self.unknown, width),
                },
            }
            after_unknown = known.is_none() && self.bytes.is_none();
        }
        self.merges.merge_symbols(&symbols.ids, &mut symbols.merged)?;
        let (mut lengths, mut start) = (symbols.lengths.iter(), 0);
        for (id, count) in &symbols.merged {
            let end = start + lengths.by_ref().take(*count as usize).sum::<u32>();
            pieces.push(Piece { id: *id, start, end });
            start = end;
        }
        Ok(())
    }

    /// The tokens that merging their own characters produces.
    fn whole_words(&self, spaced_tokens: &[(String, u32)]) -> Result<Vec<u32>, OutOfMemory> {
        const STRIDE: usize = 4096;
        type Chunk = Mutex<Result<Vec<u32>, OutOfMemory>>;
        let chunks: Vec<Chunk> = spaced_tokens.chunks(STRIDE).map(|_| Mutex::new(Ok(Vec::new()))).collect();
        let of_chunk = |chunk: usize| {
            let (mut symbols, mut pieces, mut found) = (Symbols::default(), Vec::new(), Vec::new());
            for (token, id) in
                spaced_tokens[chunk * STRIDE..].iter().take(STRIDE).filter(|(token, _)| !token.is_empty())
            {
                pieces.clear();
                memory::reserve(&mut pieces, token.len())?;
                self.merge(token, &mut symbols, &mut pieces)?;
                found.extend((pieces == [Piece::new(*id, 0, token.len())]).then_some(*id));
            }
            Ok::<_, OutOfMemory>(found)
        };
        lz_pool::for_each(chunks.len(), &|chunk: usize| {
            *chunks[chunk].lock().unwrap_or_else(PoisonError::into_inner) = of_chunk(chunk);
        });
        let mut words = Vec::new();
        for chunk in chunks {
            words.extend(chunk.into_inner().unwrap_or_else(PoisonError::into_inner)?);
        }
        Ok(words)
    }
}

impl Symbols {
    /// Empty, with room for a symbol per byte of a word.
    fn clear_for(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        self.ids.clear();
        self.lengths.clear();
        self.merged.clear();
        memory::reserve(&mut self.ids, bytes)?;
        memory::reserve(&mut self.lengths, bytes)?;
        memory::reserve(&mut self.merged, bytes)
    }

    fn push(&mut self, id: u32, length: u32) {
        self.ids.push(id);
        self.lengths.push(length);
    }
}
