//! SentencePiece BPE: repeatedly merges the adjacent symbols whose concatenation is the piece of the highest score, leftmost first.
//! User-defined pieces are never merged.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::pieces::{Kind, Pieces};
use super::trie::Trie;
use super::{Segment, character_length};

/// Recursion limit of the library for splitting unused pieces.
const MAX_DEPTH: usize = 100;
const NONE: usize = usize::MAX;

/// A BPE model.
pub struct Bpe {
    /// Whether the model has unused pieces, which are merged but never returned.
    has_unused: bool,
}

/// A symbol: a range of the text. It is empty after it was merged into its left neighbor.
struct Symbol {
    start: usize,
    end: usize,
    previous: usize,
    next: usize,
    frozen: bool,
}

/// Two adjacent symbols that may be merged.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// The state of encoding one text.
struct Encoder<'a> {
    text: &'a [u8],
    pieces: &'a Pieces,
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Pair>,
    /// For each unused piece that was considered, the length of its left part.
    unused: FxHashMap<&'a [u8], usize>,
}

impl Bpe {
    /// From the pieces of a model.
    pub fn new(pieces: &Pieces) -> Bpe {
        Bpe { has_unused: pieces.iter().any(|piece| piece.kind == Kind::Unused) }
    }

    /// The pieces of a normalized text.
    pub fn encode(&self, text: &[u8], user_defined: &Trie, pieces: &Pieces) -> Vec<Segment> {
        let symbols = symbols(text, user_defined);
        let agenda = BinaryHeap::with_capacity(symbols.len());
        let mut encoder = Encoder { text, pieces, symbols, agenda, unused: FxHashMap::default() };
        encoder.merge();
        let mut segments = Vec::new();
        for symbol in encoder.symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            if self.has_unused {
                encoder.split_unused(symbol.start, symbol.end, 0, &mut segments);
            } else {
                let id = pieces.id(&text[symbol.start..symbol.end]);
                segments.push(Segment { id, end: symbol.end });
            }
        }
        segments
    }
}

/// The initial symbols: user-defined pieces and characters.
fn symbols(text: &[u8], user_defined: &Trie) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut start = 0;
    while start < text.len() {
        let matched = user_defined.longest(&text[start..]);
        let end = start + matched.unwrap_or_else(|| character_length(&text[start..]));
        let number = symbols.len();
        let next = if end < text.len() { number + 1 } else { NONE };
        let previous = number.checked_sub(1).unwrap_or(NONE);
        symbols.push(Symbol { start, end, previous, next, frozen: matched.is_some() });
        start = end;
    }
    symbols
}

impl<'a> Encoder<'a> {
    fn merge(&mut self) {
        for right in 1..self.symbols.len() {
            self.push_pair(right - 1, right);
        }
        while let Some(pair) = self.agenda.pop() {
            let (left, right) = (&self.symbols[pair.left], &self.symbols[pair.right]);
            // The pair is stale: one of its symbols was merged in the meantime.
            if left.start == left.end || right.start == right.end || right.end - left.start != pair.length {
                continue;
            }
            let (end, next) = (right.end, right.next);
            let right = &mut self.symbols[pair.right];
            right.start = right.end;
            let left = &mut self.symbols[pair.left];
            (left.end, left.next) = (end, next);
            let previous = left.previous;
            if let Some(next) = self.symbols.get_mut(next) {
                next.previous = pair.left;
            }
            self.push_pair(previous, pair.left);
            self.push_pair(pair.left, next);
        }
    }

    /// Adds two adjacent symbols to the agenda if their concatenation is a piece.
    fn push_pair(&mut self, left: usize, right: usize) {
        let (Some(first), Some(second)) = (self.symbols.get(left), self.symbols.get(right)) else { return };
        if first.frozen || second.frozen {
            return;
        }
        let merged = &self.text[first.start..second.end];
        let Some(piece) = self.pieces.get(self.pieces.id(merged)).filter(|piece| piece.kind.is_text()) else {
            return;
        };
        if piece.kind == Kind::Unused {
            self.unused.insert(merged, first.end - first.start);
        }
        self.agenda.push(Pair { score: piece.score, left, right, length: merged.len() });
    }

    /// Appends a piece, or the parts that it was merged from if it is unused.
    fn split_unused(&self, start: usize, end: usize, depth: usize, segments: &mut Vec<Segment>) {
        let id = self.pieces.id(&self.text[start..end]);
        let unused = self.pieces.get(id).is_some_and(|piece| piece.kind == Kind::Unused);
        match self.unused.get(&self.text[start..end]).filter(|_| unused && depth <= MAX_DEPTH) {
            Some(left) => {
                self.split_unused(start, start + left, depth + 1, segments);
                self.split_unused(start + left, end, depth + 1, segments);
            }
            None => segments.push(Segment { id, end }),
        }
    }
}
