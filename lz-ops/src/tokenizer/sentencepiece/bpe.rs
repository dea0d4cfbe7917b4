//! Byte-pair encoding: the neighbors whose joined text is the piece of the highest score are joined, the first such pair first,
//! until no two neighbors are a piece. User-defined pieces are never joined with anything.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::pieces::{Kind, Pieces};
use super::trie::Trie;
use super::{Segment, character_length};

/// The library splits pieces that are not used no deeper than this.
const MAX_DEPTH: usize = 100;
const NONE: usize = usize::MAX;

/// The model.
pub struct Bpe {
    /// Whether a piece is of the kind that is joined but never given out.
    has_unused: bool,
}

/// A part of the text that is one piece so far. Joined into its left neighbor, it is empty.
struct Symbol {
    start: usize,
    end: usize,
    previous: usize,
    next: usize,
    frozen: bool,
}

/// Two neighbors that may be joined.
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

/// A text while it is encoded.
struct Work<'a> {
    text: &'a [u8],
    pieces: &'a Pieces,
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Pair>,
    /// Of joined texts that are not used, the length of the left part that they were joined from.
    unused: FxHashMap<&'a [u8], usize>,
}

impl Bpe {
    /// Of the pieces of a model.
    pub fn new(pieces: &Pieces) -> Bpe {
        Bpe { has_unused: pieces.iter().any(|piece| piece.kind == Kind::Unused) }
    }

    /// The pieces of a normalized text.
    pub fn encode(&self, text: &[u8], user_defined: &Trie, pieces: &Pieces) -> Vec<Segment> {
        let symbols = symbols(text, user_defined);
        let agenda = BinaryHeap::with_capacity(symbols.len());
        let mut work = Work { text, pieces, symbols, agenda, unused: FxHashMap::default() };
        work.join();
        let mut segments = Vec::new();
        for symbol in work.symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            if self.has_unused {
                work.split_unused(symbol.start, symbol.end, 0, &mut segments);
            } else {
                let id = pieces.id(&text[symbol.start..symbol.end]);
                segments.push(Segment { id, end: symbol.end });
            }
        }
        segments
    }
}

/// User-defined pieces and characters.
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

impl<'a> Work<'a> {
    fn join(&mut self) {
        for right in 1..self.symbols.len() {
            self.consider(right - 1, right);
        }
        while let Some(pair) = self.agenda.pop() {
            let (left, right) = (&self.symbols[pair.left], &self.symbols[pair.right]);
            // One of them was joined with something else in the meantime.
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
            self.consider(previous, pair.left);
            self.consider(pair.left, next);
        }
    }

    /// Puts two neighbors on the agenda if their joined text is a piece.
    fn consider(&mut self, left: usize, right: usize) {
        let (Some(first), Some(second)) = (self.symbols.get(left), self.symbols.get(right)) else { return };
        if first.frozen || second.frozen {
            return;
        }
        let joined = &self.text[first.start..second.end];
        let Some(piece) = self.pieces.get(self.pieces.id(joined)).filter(|piece| piece.kind.is_text()) else {
            return;
        };
        if piece.kind == Kind::Unused {
            self.unused.insert(joined, first.end - first.start);
        }
        self.agenda.push(Pair { score: piece.score, left, right, length: joined.len() });
    }

    /// Adds a piece, or what it was joined from if it is one that is not used.
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
