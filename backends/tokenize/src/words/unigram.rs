//! Unigram: a Viterbi search for the segmentation of a word with the highest sum of scores.

use lz_core::Reason;
use serde_json::Value;

use super::model::{Model, Piece, byte_tokens, metaspace_to_space, unsupported_model};
use super::trie::{ROOT, Trie};
use crate::definition::{self, Vocabulary};
use crate::memory::{self, OutOfMemory};

/// The score of an unknown character is this much below the lowest score of the vocabulary.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The model of one tokenizer.
pub struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    unknown: u32,
    unknown_score: f64,
    /// The byte fallback tokens, if the model has byte fallback.
    bytes: Option<Box<[u32; 256]>>,
}

/// The best segmentation up to an offset of a word.
#[derive(Clone, Copy)]
pub struct LatticeNode {
    score: f64,
    /// The start of its last token; [`NO_TOKEN`] before the offset is reached.
    start: u32,
    id: u32,
}

const NO_TOKEN: u32 = u32::MAX;

impl Model for Unigram {
    type Scratch = Vec<LatticeNode>;
    const KIND: &'static str = definition::UNIGRAM;

    fn read(model: &Value) -> Result<(Unigram, Vocabulary), Reason> {
        // Old files omit the type; only unigram models have scores.
        if model["type"] != "Unigram" && !(model["type"].is_null() && model["vocab"].is_array()) {
            return Err(unsupported_model("a unigram model", model["type"].to_string()));
        }
        let entry = |value: &Value| Some((value[0].as_str()?.to_owned(), value[1].as_f64()?));
        let tokens: Option<Vec<(String, f64)>> =
            model["vocab"].as_array().and_then(|tokens| tokens.iter().map(entry).collect());
        let tokens = tokens
            .ok_or_else(|| unsupported_model("`vocab` as a list of tokens with scores", "other entries"))?;
        let unknown = model["unk_id"].as_u64().filter(|id| (*id as usize) < tokens.len());
        let unknown = unknown
            .ok_or_else(|| unsupported_model("`unk_id` in the vocabulary", model["unk_id"].to_string()))?;
        let scores: Vec<f64> = tokens.iter().map(|(_, score)| *score).collect();
        let vocabulary: Vocabulary =
            tokens.into_iter().zip(0..).map(|((token, _), id)| (token, id)).collect();
        let tokens: Vec<(String, u32)> =
            vocabulary.iter().filter_map(|(token, id)| Some((metaspace_to_space(token)?, *id))).collect();
        let trie = Trie::new(tokens.iter().map(|(token, id)| (token.as_bytes(), *id)));
        let byte_fallback = model["byte_fallback"].as_bool().unwrap_or(false);
        let unigram = Unigram {
            bytes: byte_fallback.then(|| byte_tokens(&trie)).transpose()?,
            trie,
            unknown: unknown as u32,
            unknown_score: scores.iter().copied().fold(f64::INFINITY, f64::min) - UNKNOWN_PENALTY,
            scores,
        };
        Ok((unigram, vocabulary))
    }

    /// Never: scores of a whole text and of its words are rounded differently.
    fn splits_at_spaces(&self) -> bool {
        false
    }

    fn tokenize_word(
        &self,
        word: &str,
        lattice: &mut Vec<LatticeNode>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), OutOfMemory> {
        let bytes = word.as_bytes();
        lattice.clear();
        memory::reserve(lattice, bytes.len() + 1)?;
        lattice.resize(bytes.len() + 1, LatticeNode { score: 0.0, start: NO_TOKEN, id: 0 });
        for (start, character) in word.char_indices() {
            let before = lattice[start].score;
            let width = character.len_utf8();
            let mut has_single_character = false;
            let mut relax = |end: usize, id: u32, score: f64| {
                let score = score + before;
                let node = &mut lattice[end];
                if node.start == NO_TOKEN || score > node.score {
                    *node = LatticeNode { score, start: start as u32, id };
                }
            };
            self.trie.prefixes(ROOT, &bytes[start..], |length, id| {
                relax(start + length, id, self.scores[id as usize]);
                has_single_character |= length == width;
            });
            if !has_single_character {
                relax(start + width, self.unknown, self.unknown_score);
            }
        }
        let first = pieces.len();
        let mut end = bytes.len();
        while end > 0 {
            let LatticeNode { start, id, .. } = lattice[end];
            // Adjacent unknown characters are one token.
            match pieces[first..].last_mut() {
                Some(last) if id == self.unknown && last.id == id => last.start = start,
                _ => pieces.push(Piece::new(id, start as usize, end)),
            }
            end = start as usize;
        }
        pieces[first..].reverse();
        if pieces[first..].iter().any(|piece| piece.id == self.unknown) {
            self.resolve_unknown(bytes, first, pieces)?;
        }
        Ok(())
    }
}

impl Unigram {
    /// Replaces each unknown run by the token with the same text if there is one, else by byte fallback tokens.
    fn resolve_unknown(&self, word: &[u8], first: usize, pieces: &mut Vec<Piece>) -> Result<(), OutOfMemory> {
        let found = memory::collect(pieces.len() - first, pieces.drain(first..))?;
        for piece in found {
            let text = &word[piece.start as usize..piece.end as usize];
            match (&self.bytes, self.trie.find(text)) {
                _ if piece.id != self.unknown => pieces.push(piece),
                (_, Some(id)) => pieces.push(Piece { id, ..piece }),
                (Some(bytes), None) => {
                    pieces.extend(text.iter().map(|byte| Piece { id: bytes[usize::from(*byte)], ..piece }));
                }
                (None, None) => pieces.push(piece),
            }
        }
        Ok(())
    }
}
