//! SentencePiece unigram: a Viterbi search for the segmentation with the highest sum of scores. As in the library, sums are `f32` and
//! the first of equal sums wins; ties determine, for example, how a run of dots is segmented.

use super::pieces::{Kind, Pieces};
use super::trie::Trie;
use super::{Segment, character_length};

/// The score of an unknown character is this much below the lowest score of all pieces.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Sums of a larger magnitude are rebased to zero, so that they stay precise in long texts.
const SCORE_RESET: f32 = 100_000.0;

/// A unigram model.
pub struct Unigram {
    trie: Trie,
    /// Scores by id.
    scores: Vec<f32>,
    unknown: u32,
    unknown_score: f32,
}

/// The best segmentation up to an offset of a text: its sum of scores and its last piece.
#[derive(Clone, Copy)]
struct LatticeNode {
    score: f32,
    id: u32,
    start: Option<usize>,
}

impl LatticeNode {
    fn relax(&mut self, score: f32, id: u32, start: usize) {
        if self.start.is_none() || score > self.score {
            *self = LatticeNode { score, id, start: Some(start) };
        }
    }
}

impl Unigram {
    /// From the pieces of a model.
    pub fn new(pieces: &Pieces) -> Result<Unigram, String> {
        if let Some(piece) = pieces.iter().find(|piece| !piece.score.is_finite()) {
            return Err(format!("the score {} of piece {} is not finite", piece.score, piece.id));
        }
        let used = pieces.iter().filter(|piece| matches!(piece.kind, Kind::Normal | Kind::UserDefined));
        let trie = Trie::new(used.map(|piece| (piece.text.as_bytes(), piece.id)).collect());
        if !pieces.iter().any(|piece| piece.kind.is_text()) {
            return Err("the model has no text pieces (type NORMAL, USER_DEFINED or UNUSED)".to_owned());
        }
        let score = |piece: &super::pieces::Piece| match piece.kind {
            // A user-defined piece scores higher than any segmentation of its text.
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
        let mut lattice = vec![LatticeNode { score: 0.0, id: self.unknown, start: None }; text.len() + 1];
        let (mut start, mut frontier) = (0, 0);
        while start < text.len() {
            let mut before = lattice[start].score;
            if before.abs() > SCORE_RESET {
                for (offset, node) in (start..).zip(&mut lattice[start..=frontier.max(start)]) {
                    if offset == start || node.start.is_some() {
                        node.score -= before;
                    }
                }
                before = 0.0;
            }
            let width = character_length(&text[start..]);
            let mut has_single_character = false;
            self.trie.prefixes(&text[start..], |length, id| {
                frontier = frontier.max(start + length);
                lattice[start + length].relax(self.scores[id as usize] + before, id, start);
                has_single_character |= length == width;
            });
            if !has_single_character {
                frontier = frontier.max(start + width);
                lattice[start + width].relax(self.unknown_score + before, self.unknown, start);
            }
            start += width;
        }
        let mut segments = Vec::with_capacity(text.len() / 4 + 1);
        let mut end = text.len();
        while let Some(start) = lattice[end].start {
            segments.push(Segment { id: lattice[end].id, end });
            end = start;
        }
        segments.reverse();
        segments
    }
}
