//! Unigrams: of all ways to cut a text into pieces, the one with the largest sum of scores. Sums are of single precision and the
//! first of equal ones wins, as in the library, because ties decide which pieces a run of dots becomes.

use super::pieces::{Kind, Pieces};
use super::trie::Trie;
use super::{Segment, character_length};

/// How much worse than the worst piece a character is that no piece has.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Sums of a larger magnitude are counted from zero again, so that they stay exact in long texts.
const SCORE_RESET: f32 = 100_000.0;

/// The model.
pub struct Unigram {
    trie: Trie,
    /// By id.
    scores: Vec<f32>,
    unknown: u32,
    unknown_score: f32,
}

/// The best way to a place of a text: its sum, and its last piece.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    id: u32,
    start: Option<usize>,
}

impl Best {
    fn offer(&mut self, score: f32, id: u32, start: usize) {
        if self.start.is_none() || score > self.score {
            *self = Best { score, id, start: Some(start) };
        }
    }
}

impl Unigram {
    /// Of the pieces of a model.
    pub fn new(pieces: &Pieces) -> Result<Unigram, String> {
        if let Some(piece) = pieces.iter().find(|piece| !piece.score.is_finite()) {
            return Err(format!("the score of piece {} is not finite", piece.id));
        }
        let used = pieces.iter().filter(|piece| matches!(piece.kind, Kind::Normal | Kind::UserDefined));
        let trie = Trie::new(used.map(|piece| (piece.text.as_bytes(), piece.id)).collect());
        if !pieces.iter().any(|piece| piece.kind.is_text()) {
            return Err("no piece of it is text".to_owned());
        }
        let score = |piece: &super::pieces::Piece| match piece.kind {
            // Longer ones win over whatever they are made of.
            Kind::UserDefined => (0.1 * (piece.text.len() as f64 - 1.0)) as f32,
            _ => piece.score,
        };
        let normal = pieces.iter().filter(|piece| piece.kind == Kind::Normal);
        let least = normal.map(|piece| piece.score).fold(f32::MAX, f32::min);
        Ok(Unigram {
            trie,
            scores: pieces.iter().map(score).collect(),
            unknown: pieces.unknown,
            unknown_score: least - UNKNOWN_PENALTY,
        })
    }

    /// The pieces of a normalized text.
    pub fn encode(&self, text: &[u8]) -> Vec<Segment> {
        let mut best = vec![Best { score: 0.0, id: self.unknown, start: None }; text.len() + 1];
        let (mut start, mut frontier) = (0, 0);
        while start < text.len() {
            let mut before = best[start].score;
            if before.abs() > SCORE_RESET {
                for (place, best) in (start..).zip(&mut best[start..=frontier.max(start)]) {
                    if place == start || best.start.is_some() {
                        best.score -= before;
                    }
                }
                before = 0.0;
            }
            let width = character_length(&text[start..]);
            let mut alone = false;
            self.trie.prefixes(&text[start..], |length, id| {
                frontier = frontier.max(start + length);
                best[start + length].offer(self.scores[id as usize] + before, id, start);
                alone |= length == width;
            });
            if !alone {
                frontier = frontier.max(start + width);
                best[start + width].offer(self.unknown_score + before, self.unknown, start);
            }
            start += width;
        }
        let mut segments = Vec::with_capacity(text.len() / 4 + 1);
        let mut end = text.len();
        while let Some(start) = best[end].start {
            segments.push(Segment { id: best[end].id, end });
            end = start;
        }
        segments.reverse();
        segments
    }
}
