//! Unigrams: of all ways to cut a word into tokens, the one whose scores have the largest sum.

use lz_core::Reason;
use serde_json::Value;

use super::model::{Model, Piece, byte_tokens, spaced, unlike};
use super::trie::{ROOT, Trie};
use crate::definition::{self, Vocabulary};

/// How much worse than the worst token a character is that no token has.
const PENALTY: f64 = 10.0;

/// The model of one tokenizer.
pub struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    unknown: u32,
    unknown_score: f64,
    /// The tokens of bytes that stand for what is unknown, if there are all of them.
    bytes: Option<Box<[u32; 256]>>,
}

/// The best way to a place of a word.
#[derive(Clone, Copy)]
pub struct Best {
    score: f64,
    /// Where its last token begins; [`NOWHERE`] before any is known.
    start: u32,
    id: u32,
}

const NOWHERE: u32 = u32::MAX;

impl Model for Unigram {
    type Scratch = Vec<Best>;
    const KIND: &'static str = definition::UNIGRAM;

    fn read(model: &Value) -> Result<(Unigram, Vocabulary), Reason> {
        // Old files leave the type out; only unigrams have scores.
        if model["type"] != "Unigram" && !(model["type"].is_null() && model["vocab"].is_array()) {
            return Err(unlike("a unigram model", model["type"].to_string()));
        }
        let entry = |value: &Value| Some((value[0].as_str()?.to_owned(), value[1].as_f64()?));
        let tokens: Option<Vec<(String, f64)>> =
            model["vocab"].as_array().and_then(|tokens| tokens.iter().map(entry).collect());
        let tokens = tokens.ok_or_else(|| unlike("tokens with their scores", "others"))?;
        let unknown = model["unk_id"].as_u64().filter(|id| (*id as usize) < tokens.len());
        let unknown =
            unknown.ok_or_else(|| unlike("an id for what is unknown", model["unk_id"].to_string()))?;
        let scores: Vec<f64> = tokens.iter().map(|(_, score)| *score).collect();
        let vocabulary: Vocabulary =
            tokens.into_iter().zip(0..).map(|((token, _), id)| (token, id)).collect();
        let known: Vec<(String, u32)> =
            vocabulary.iter().filter_map(|(token, id)| Some((spaced(token)?, *id))).collect();
        let trie = Trie::new(known.iter().map(|(token, id)| (token.as_bytes(), *id)));
        let falls_back = model["byte_fallback"].as_bool().unwrap_or(false);
        let made = Unigram {
            bytes: falls_back.then(|| byte_tokens(&trie)).transpose()?,
            trie,
            unknown: unknown as u32,
            unknown_score: scores.iter().copied().fold(f64::INFINITY, f64::min) - PENALTY,
            scores,
        };
        Ok((made, vocabulary))
    }

    /// Sums are rounded, and those of a whole text otherwise than those of its words.
    fn cuts_at_spaces(&self) -> bool {
        false
    }

    fn cut(&self, word: &str, best: &mut Vec<Best>, pieces: &mut Vec<Piece>) {
        let bytes = word.as_bytes();
        best.clear();
        best.resize(bytes.len() + 1, Best { score: 0.0, start: NOWHERE, id: 0 });
        for (start, character) in word.char_indices() {
            let before = best[start].score;
            let width = character.len_utf8();
            let mut alone = false;
            let mut offer = |end: usize, id: u32, score: f64| {
                let score = score + before;
                let place = &mut best[end];
                if place.start == NOWHERE || score > place.score {
                    *place = Best { score, start: start as u32, id };
                }
            };
            self.trie.prefixes(ROOT, &bytes[start..], |length, id| {
                offer(start + length, id, self.scores[id as usize]);
                alone |= length == width;
            });
            if !alone {
                offer(start + width, self.unknown, self.unknown_score);
            }
        }
        let first = pieces.len();
        let mut end = bytes.len();
        while end > 0 {
            let Best { start, id, .. } = best[end];
            // Neighbours that are unknown are one token.
            match pieces[first..].last_mut() {
                Some(last) if id == self.unknown && last.id == id => last.start = start,
                _ => pieces.push(Piece::new(id, start as usize, end)),
            }
            end = start as usize;
        }
        pieces[first..].reverse();
        if pieces[first..].iter().any(|piece| piece.id == self.unknown) {
            self.name_unknown(bytes, first, pieces);
        }
    }
}

impl Unigram {
    /// What is unknown is a token after all if it is one as a whole; or else it is bytes, if they have tokens.
    fn name_unknown(&self, word: &[u8], first: usize, pieces: &mut Vec<Piece>) {
        for piece in pieces.split_off(first) {
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
    }
}
