//! BPE merges: repeatedly merges the adjacent pair of lowest rank, leftmost first, until no pair has a rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::pair_ranks::{NO_RANK, PairRanks};
use crate::memory::{self, OutOfMemory};
use crate::vocabulary::ID_BITS;

/// The merges of a model: ranks of pairs and the tokens that they produce.
///
/// [`Merges::reduced_to`] renumbers tokens with internal ids: bytes are 0 to 255, and the merge of rank r produces 256 + r, so that no
/// lookup is needed for the token of a merge.
pub struct Merges {
    /// The (internal) id of each byte.
    bytes: [u32; 256],
    /// Ranks of all pairs of single bytes, which every piece starts with.
    byte_pairs: Box<[BytePair]>,
    pub(super) pairs: PairRanks,
    /// The token that the merge of each rank produces; empty with internal ids.
    tokens: Vec<u32>,
    /// The token id of each internal id; empty without internal ids.
    ids: Vec<u32>,
    /// Internal ids from here on are token ids, so that no lookup is needed.
    same_from: u32,
}

/// A pair of single bytes in one word: the rank of its merge, and half the ranks of merges that may consume one of the bytes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BytePair(u64);

pub(super) const NO_BYTE_PAIR: BytePair = BytePair::new(NO_RANK, NO_RANK, NO_RANK);

impl BytePair {
    /// Bits of half a rank.
    const HALF_BITS: u32 = RANK_BITS - 1;

    const fn new(rank: u32, rival_left: u32, rival_right: u32) -> BytePair {
        let halves = ((rival_left >> 1) as u64) << Self::HALF_BITS | (rival_right >> 1) as u64;
        BytePair((rank as u64) << (2 * Self::HALF_BITS) | halves)
    }

    #[inline(always)]
    pub(super) fn rank(self) -> u32 {
        (self.0 >> (2 * Self::HALF_BITS)) as u32
    }

    /// Half the lowest rank of a merge of any token that ends with the first byte and the second byte alone.
    #[inline(always)]
    pub(super) fn rival_left(self) -> u32 {
        (self.0 >> Self::HALF_BITS) as u32 & ((1 << Self::HALF_BITS) - 1)
    }

    /// Half the lowest rank of a merge of the first byte alone and any token that begins with the second byte.
    #[inline(always)]
    pub(super) fn rival_right(self) -> u32 {
        self.0 as u32 & ((1 << Self::HALF_BITS) - 1)
    }

    /// Whether no rival ranks before the merge. `before` is the [`BytePair::rival_left`] of the pair before, `after` the pair after.
    #[inline(always)]
    pub(super) fn is_independent(self, before: u32, after: BytePair) -> bool {
        // If the half of a rank is less, the rank is.
        let half = self.rank() >> 1;
        (half < before) & (half < after.rival_right())
    }

    /// The same pair with other rivals.
    fn with_rivals(self, [left, right]: [u32; 2]) -> BytePair {
        BytePair::new(self.rank(), left, right)
    }
}

/// A BPE merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Left token.
    pub left: u32,
    /// Right token.
    pub right: u32,
    /// Merges of lower rank are applied first.
    pub rank: u32,
}

/// Number of byte values.
const BYTES: usize = 256;
/// Bits of a rank. Two ids and a rank fill 64 bits.
pub const RANK_BITS: u32 = 22;
/// Maximum number of merges.
pub const MAX_PAIRS: usize = (1 << RANK_BITS) - 1;

/// Pieces of up to this many bytes are merged on the stack, with a linear scan for the lowest rank. Longer ones use a heap.
const MAX_SHORT_PIECE: usize = 48;
/// Most pieces have up to this many bytes: they take less memory.
const MAX_SMALL_PIECE: usize = 16;
/// Greater than every rank with its position.
pub(super) const NO_PAIR: i32 = i32::MAX;
/// Bits of a position in a short piece.
pub(super) const POSITION_BITS: u32 = 6;

impl Merges {
    /// From the token of each byte and `(left, right, merged)` triples in rank order. A repeated pair has its last rank. At most
    /// [`MAX_IDS`](crate::vocabulary::MAX_IDS) ids and [`MAX_PAIRS`] pairs.
    pub fn new(bytes: [u32; 256], pairs: &[(u32, u32, u32)]) -> Merges {
        let tokens = pairs.iter().map(|&(_, _, token)| token).collect();
        let ranked = pairs.iter().zip(0..).map(|(&(left, right, _), rank)| Pair { left, right, rank });
        Merges::ranked(bytes, &ranked.collect::<Vec<_>>(), tokens)
    }

    /// Merges of symbols that are not bytes, from `(left, right, merged)` triples in rank order.
    pub fn of_symbols(pairs: &[(u32, u32, u32)]) -> Merges {
        Merges::new([0; BYTES], pairs)
    }

    /// The same merges reduced to `pairs`, at most one for each token, with internal ids.
    pub fn reduced_to(&self, pairs: &[Pair]) -> Merges {
        let mut pairs = pairs.to_vec();
        pairs.sort_unstable_by_key(|pair| pair.rank);
        let mut ids = self.bytes.to_vec();
        ids.extend(pairs.iter().map(|pair| self.token(pair.rank)));
        let internal_ids: FxHashMap<u32, u32> = ids.iter().copied().zip(0..).collect();
        // Both sides of a pair are bytes or produced by another pair.
        let internal = |token: u32| internal_ids.get(&token).copied().unwrap_or(0);
        for (pair, rank) in pairs.iter_mut().zip(0..) {
            *pair = Pair { left: internal(pair.left), right: internal(pair.right), rank };
        }
        let bytes = std::array::from_fn(|byte| byte as u32);
        let same_from = ids.iter().enumerate().rposition(|(internal, id)| *id != internal as u32);
        let same_from = same_from.map_or(0, |last| last as u32 + 1);
        let mut merges = Merges { ids, same_from, ..Merges::ranked(bytes, &pairs, Vec::new()) };
        merges.compute_rivals(&pairs);
        merges
    }

    /// Computes the rivals of all byte pairs from the pairs in rank order, with internal ids.
    fn compute_rivals(&mut self, pairs: &[Pair]) {
        let mut rivals = vec![[NO_RANK; 2]; BYTES * BYTES];
        // Each side of a merge is shorter than its result, so this ends at a byte.
        let end = |mut internal: u32, side: fn(&Pair) -> u32| {
            while let Some(rank) = (internal as usize).checked_sub(BYTES) {
                internal = side(&pairs[rank]);
            }
            internal as usize
        };
        for &Pair { left, right, rank } in pairs {
            if right < BYTES as u32 {
                let [first, _] = &mut rivals[end(left, |pair| pair.right) << 8 | right as usize];
                *first = rank.min(*first);
            }
            if left < BYTES as u32 {
                let [_, second] = &mut rivals[(left as usize) << 8 | end(right, |pair| pair.left)];
                *second = rank.min(*second);
            }
            for side in [left, right] {
                keep_in_order(side, rank, pairs, &mut rivals);
            }
        }
        for (byte_pair, rivals) in self.byte_pairs.iter_mut().zip(rivals) {
            *byte_pair = byte_pair.with_rivals(rivals);
        }
    }

    fn ranked(bytes: [u32; BYTES], pairs: &[Pair], tokens: Vec<u32>) -> Merges {
        let mut merges = Merges {
            bytes,
            byte_pairs: Box::default(),
            pairs: PairRanks::new(pairs),
            tokens,
            ids: Vec::new(),
            same_from: 0,
        };
        let of_bytes = |index: usize| {
            let rank = merges.rank(bytes[index >> 8], bytes[index & 255]);
            // Without internal ids the rivals are unknown: rank 0 assumes that there always is one.
            BytePair::new(rank, 0, 0)
        };
        merges.byte_pairs = (0..1 << 16).map(of_bytes).collect();
        merges
    }

    /// A pair of single bytes.
    #[inline(always)]
    pub(super) fn byte_pair(&self, first: u8, second: u8) -> BytePair {
        self.byte_pairs[usize::from(first) << 8 | usize::from(second)]
    }

    /// The (internal) id of a byte.
    #[inline(always)]
    pub(super) fn byte_id(&self, byte: u8) -> u32 {
        self.bytes[usize::from(byte)]
    }

    #[inline(always)]
    fn rank(&self, left: u32, right: u32) -> u32 {
        self.pairs.rank(left, right)
    }

    /// The token that the merge of this rank produces.
    #[inline]
    pub fn token(&self, rank: u32) -> u32 {
        if self.tokens.is_empty() { BYTES as u32 + rank } else { self.tokens[rank as usize] }
    }

    /// The internal id of the token that the merge of this rank produces.
    #[inline(always)]
    pub(super) fn internal(rank: u32) -> u32 {
        BYTES as u32 + rank
    }

    /// The token id of an internal id.
    #[inline]
    pub(super) fn id(&self, internal: u32) -> u32 {
        if internal >= self.same_from { internal } else { self.ids[internal as usize] }
    }

    /// Appends the tokens of a piece; there is room for one per byte.
    pub fn merge(&self, piece: &[u8], tokens: &mut Vec<u32>) -> Result<(), OutOfMemory> {
        match piece.len() {
            0 => {}
            1 => tokens.push(self.id(self.bytes[usize::from(piece[0])])),
            2..=MAX_SMALL_PIECE => {
                self.merge_short::<MAX_SMALL_PIECE>(piece, |token, _| tokens.push(token));
            }
            length if length <= MAX_SHORT_PIECE => {
                self.merge_short::<MAX_SHORT_PIECE>(piece, |token, _| tokens.push(token));
            }
            _ => {
                self.merge_long(piece, |token, _| tokens.push(token))?;
            }
        }
        Ok(())
    }

    /// Merges symbols. Appends each token with the number of symbols that it covers; there is room for one per symbol.
    pub fn merge_symbols(&self, symbols: &[u32], tokens: &mut Vec<(u32, u32)>) -> Result<(), OutOfMemory> {
        self.merge_symbols_with(symbols, |token, count| tokens.push((token, count))).map(drop)
    }

    /// Merges symbols. Calls `each` with every token.
    pub fn merge_each(&self, symbols: &[u32], mut each: impl FnMut(u32)) -> Result<(), OutOfMemory> {
        self.merge_symbols_with(symbols, |token, _| each(token)).map(drop)
    }

    /// The tokens of the bytes of a piece, the last of which is in `last`.
    pub fn marked_symbols(&self, piece: &[u8], last: &[u32; BYTES]) -> Result<Vec<u32>, OutOfMemory> {
        let mut symbols = self.symbols(piece)?;
        if let (Some(symbol), Some(byte)) = (symbols.last_mut(), piece.last()) {
            *symbol = last[usize::from(*byte)];
        }
        Ok(symbols)
    }

    /// The tokens of the bytes of a piece.
    fn symbols(&self, piece: &[u8]) -> Result<Vec<u32>, OutOfMemory> {
        memory::collect(piece.len(), piece.iter().map(|byte| self.bytes[usize::from(*byte)]))
    }

    /// The last merge that was applied to a piece, if it became a single token. With `last`, tokens that end a piece are marked.
    pub fn last_pair(&self, piece: &[u8], last: Option<&[u32; BYTES]>) -> Result<Option<Pair>, OutOfMemory> {
        let symbols = self.marked_symbols(piece, last.unwrap_or(&self.bytes))?;
        let mut count = 0;
        let pair = self.merge_symbols_with(&symbols, |_, _| count += 1)?;
        Ok(pair.filter(|_| count == 1))
    }

    /// Returns the last merge that was applied.
    fn merge_symbols_with(
        &self,
        symbols: &[u32],
        each: impl FnMut(u32, u32),
    ) -> Result<Option<Pair>, OutOfMemory> {
        Ok(match symbols.len() {
            0 => None,
            1..=MAX_SMALL_PIECE => self.merge_few::<MAX_SMALL_PIECE>(symbols, each),
            length if length <= MAX_SHORT_PIECE => self.merge_few::<MAX_SHORT_PIECE>(symbols, each),
            count => self.merge_symbols_long(memory::collect(count, symbols.iter().copied())?, each)?,
        })
    }

    /// Merges at most `N` symbols. Returns the last merge that was applied.
    fn merge_few<const N: usize>(&self, symbols: &[u32], each: impl FnMut(u32, u32)) -> Option<Pair> {
        let (mut ids, mut ranks) = ([0; N], [NO_PAIR; N]);
        ids[..symbols.len()].copy_from_slice(symbols);
        for position in 0..symbols.len() - 1 {
            ranks[position] =
                rank_and_position(self.rank(symbols[position], symbols[position + 1]), position);
        }
        self.merge_symbols_short(&mut ids, &mut ranks, &mut Links::new(), symbols.len(), each)
    }

    /// Merges a piece of at most `N` bytes. Byte pairs without a rival of lower rank are merged up front: their ranks are independent
    /// lookups, so the cache misses overlap.
    #[inline]
    fn merge_short<const N: usize>(&self, piece: &[u8], each: impl FnMut(u32, u32)) {
        let (mut ids, mut ranks, mut links) = ([0u32; N], [NO_PAIR; N], Links::<N>::new());
        let byte_pair = |position: usize| match piece.get(position + 1) {
            Some(second) => self.byte_pair(piece[position], *second),
            None => NO_BYTE_PAIR,
        };
        // One bit for each position where such a pair begins. No two of them share a byte.
        let mut independent = 0u64;
        let (mut before, mut own) = (NO_RANK, byte_pair(0));
        for (position, byte) in piece.iter().enumerate() {
            let after = byte_pair(position + 1);
            ids[position] = self.bytes[usize::from(*byte)];
            ranks[position] = rank_and_position(own.rank(), position);
            independent |= u64::from(own.is_independent(before, after)) << position;
            (before, own) = (own.rival_left(), after);
        }
        let mut rest = independent;
        while rest != 0 {
            let position = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            ids[position] = self.token(rank_of(ranks[position]));
            ranks[position + 1] = NO_PAIR;
            links.skip(position, position + 1);
        }
        // Look up the ranks of pairs next to a merged one.
        let mut rest = independent;
        while rest != 0 {
            let position = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let after = position + 2;
            ranks[position] = if after < piece.len() {
                rank_and_position(self.rank(ids[position], ids[after]), position)
            } else {
                NO_PAIR
            };
            let left = usize::from(links.previous[position]);
            if left < piece.len() && independent >> left & 1 == 0 {
                ranks[left] = rank_and_position(self.rank(ids[left], ids[position]), left);
            }
        }
        self.merge_symbols_short(&mut ids, &mut ranks, &mut links, piece.len(), each);
    }

    /// Merges symbols, given the rank and position of the pair that begins at each: the minimum is the next merge. Calls `each` with
    /// every resulting token and the number of symbols that it covers. Returns the last merge that was applied.
    #[inline]
    fn merge_symbols_short<const N: usize>(
        &self,
        ids: &mut [u32; N],
        ranks: &mut [i32; N],
        Links { next, previous }: &mut Links<N>,
        count: usize,
        mut each: impl FnMut(u32, u32),
    ) -> Option<Pair> {
        let mut last = None;
        // Whole groups of four for SIMD.
        let groups = &mut ranks[..count.next_multiple_of(4)];
        loop {
            let (rank, position) = split_rank(minimum(groups));
            if rank >= NO_RANK {
                break;
            }
            let behind = usize::from(next[position]);
            last = Some(Pair { left: ids[position], right: ids[behind], rank });
            ids[position] = self.token(rank);
            groups[behind] = NO_PAIR;
            let after = usize::from(next[behind]);
            next[position] = after as u8;
            groups[position] = NO_PAIR;
            if after < count {
                previous[after] = position as u8;
                groups[position] = rank_and_position(self.rank(ids[position], ids[after]), position);
            }
            let before = usize::from(previous[position]);
            if before < count {
                groups[before] = rank_and_position(self.rank(ids[before], ids[position]), before);
            }
        }
        let mut position = 0;
        while position < count {
            let after = usize::from(next[position]);
            each(self.id(ids[position]), (after - position) as u32);
            position = after;
        }
        last
    }

    /// Returns the last merge that was applied.
    fn merge_long(&self, piece: &[u8], each: impl FnMut(u32, u32)) -> Result<Option<Pair>, OutOfMemory> {
        self.merge_symbols_long(self.symbols(piece)?, each)
    }

    /// Like [`Merges::merge_symbols_short`], but with a heap: O(n log n) for any length.
    fn merge_symbols_long(
        &self,
        mut ids: Vec<u32>,
        mut each: impl FnMut(u32, u32),
    ) -> Result<Option<Pair>, OutOfMemory> {
        const MERGED: u32 = u32::MAX;
        let (count, end) = (ids.len(), ids.len() - 1);
        let mut next: Vec<u32> = memory::collect(count, 1..)?;
        let mut previous: Vec<u32> =
            memory::collect(count, (0..).map(|position: u32| position.wrapping_sub(1)))?;
        // A merge takes one entry out and adds at most two, and there are fewer merges than symbols.
        let mut queue = BinaryHeap::from(memory::with_capacity(2 * count)?);
        // Entries hold both symbols, so that stale ones are detected when popped.
        let offer = |queue: &mut BinaryHeap<_>, ids: &[u32], left: usize, right: usize| {
            let rank = self.rank(ids[left], ids[right]);
            if rank != NO_RANK {
                queue.push(Reverse((rank, left as u32, ids[left], ids[right])));
            }
        };
        for position in 0..end {
            offer(&mut queue, &ids, position, position + 1);
        }
        let mut last = None;
        while let Some(Reverse((rank, position, left, right))) = queue.pop() {
            let position = position as usize;
            let behind = next[position] as usize;
            if ids[position] != left || behind > end || ids[behind] != right {
                continue;
            }
            last = Some(Pair { left, right, rank });
            ids[position] = self.token(rank);
            ids[behind] = MERGED;
            next[position] = next[behind];
            let after = next[position] as usize;
            if after <= end {
                previous[after] = position as u32;
                offer(&mut queue, &ids, position, after);
            }
            let before = previous[position] as usize;
            if before <= end {
                offer(&mut queue, &ids, before, position);
            }
        }
        let mut position = 0;
        while position <= end {
            let after = next[position] as usize;
            each(self.id(ids[position]), (after - position) as u32);
            position = after;
        }
        Ok(last)
    }
}

/// A merge that ranks before the pair of bytes that produces its side precedes others as soon as that side exists. Such a pair may
/// not be merged up front: all pairs of bytes next to it become rivals. Trained vocabularies have no such merge.
fn keep_in_order(side: u32, rank: u32, pairs: &[Pair], rivals: &mut [[u32; 2]]) {
    let Some(produced) = (side as usize).checked_sub(BYTES).filter(|produced| *produced > rank as usize)
    else {
        return;
    };
    let Pair { left, right, .. } = pairs[produced];
    if left < BYTES as u32 && right < BYTES as u32 {
        for byte in 0..BYTES {
            rivals[byte << 8 | left as usize][0] = 0;
            rivals[(right as usize) << 8 | byte][1] = 0;
        }
    }
}

/// A doubly linked list over the symbols of a short piece.
#[derive(Clone, Copy)]
struct Links<const N: usize> {
    next: [u8; N],
    previous: [u8; N],
}

impl<const N: usize> Links<N> {
    /// No symbol is unlinked; copied from a constant.
    const ALL: Links<N> = {
        let mut links = Links { next: [0; N], previous: [0; N] };
        let mut position = 0;
        while position < N {
            links.next[position] = position as u8 + 1;
            links.previous[position] = (position as u8).wrapping_sub(1);
            position += 1;
        }
        links
    };

    #[inline(always)]
    fn new() -> Links<N> {
        Links::ALL
    }

    /// Unlinks the symbol at `behind`, which was merged into the one at `position`.
    #[inline(always)]
    fn skip(&mut self, position: usize, behind: usize) {
        let after = self.next[behind];
        self.next[position] = after;
        if let Some(previous) = self.previous.get_mut(usize::from(after)) {
            *previous = position as u8;
        }
    }
}

/// A rank with its position in the low bits.
#[inline(always)]
pub(super) fn rank_and_position(rank: u32, position: usize) -> i32 {
    // A rank has 22 bits.
    (rank << POSITION_BITS | position as u32) as i32
}

/// The rank and the position of [`rank_and_position`].
#[inline(always)]
pub(super) fn split_rank(both: i32) -> (u32, usize) {
    (rank_of(both), (both & ((1 << POSITION_BITS) - 1)) as usize)
}

/// The rank of [`rank_and_position`].
#[inline(always)]
pub(super) fn rank_of(both: i32) -> u32 {
    (both >> POSITION_BITS) as u32
}

/// A pair as one key.
#[inline(always)]
pub fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

/// The minimum of whole groups of four.
#[inline(always)]
pub(super) fn minimum(groups: &[i32]) -> i32 {
    let mut all = [NO_PAIR; 4];
    for group in groups.chunks_exact(4) {
        for (minimum, &other) in all.iter_mut().zip(group) {
            *minimum = (*minimum).min(other);
        }
    }
    all[0].min(all[1]).min(all[2].min(all[3]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Merges over the letters a, b and c, with byte values as ids, and the bytes of every token.
    fn merges() -> (Merges, Vec<Vec<u8>>) {
        merges_from(0)
    }

    /// The same merges with the ranks of the first ones behind all others, so that some precede those that produce their sides.
    fn merges_from(first: usize) -> (Merges, Vec<Vec<u8>>) {
        let mut texts: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut pairs = Vec::new();
        let mut known = [b'a', b'b', b'c'].map(u32::from).to_vec();
        for step in 0..40usize {
            let (left, right) = (known[step * 7 % known.len()], known[step * 5 % known.len()]);
            if pairs.iter().all(|&(a, b, _)| (a, b) != (left, right)) {
                let text = [&texts[left as usize][..], &texts[right as usize]].concat();
                // Equal bytes are the same token.
                let token = texts.iter().position(|known| *known == text).unwrap_or(texts.len());
                if token == texts.len() {
                    texts.push(text);
                    known.push(token as u32);
                }
                pairs.push((left, right, token as u32));
            }
        }
        let count = pairs.len();
        pairs.rotate_left(first % count);
        (Merges::new(std::array::from_fn(|byte| byte as u32), &pairs), texts)
    }

    proptest! {
        #[test]
        fn short_and_long_merging_agree(piece in "[abcd]{2,48}") {
            let (merges, _) = merges();
            let (mut short, mut long) = (Vec::new(), Vec::new());
            merges.merge_short::<MAX_SHORT_PIECE>(piece.as_bytes(), |token, count| short.push((token, count)));
            merges.merge_long(piece.as_bytes(), |token, count| long.push((token, count))).unwrap();
            prop_assert_eq!(&short, &long);
            let symbols: Vec<u32> = piece.bytes().map(u32::from).collect();
            let mut joined = Vec::new();
            merges.merge_symbols(&symbols, &mut joined).unwrap();
            prop_assert_eq!(joined, short);
        }
    }

    proptest! {
        #[test]
        fn merges_reduced_to_last_pairs_give_equal_tokens(piece in "[abc]{2,60}", first in 0usize..40) {
            let (merges, texts) = merges_from(first);
            let pairs: Vec<Pair> = texts.iter().filter_map(|text| merges.last_pair(text, None).unwrap()).collect();
            let reduced = merges.reduced_to(&pairs);
            let (mut all, mut few) = (Vec::new(), Vec::new());
            merges.merge(piece.as_bytes(), &mut all).unwrap();
            reduced.merge(piece.as_bytes(), &mut few).unwrap();
            prop_assert_eq!(all, few);
        }
    }

    #[test]
    fn a_pair_may_rank_before_the_merges_of_its_sides() {
        let texts = ["ab", "abc", "bc", "cab"];
        let (a, b, c) = (u32::from(b'a'), u32::from(b'b'), u32::from(b'c'));
        let pairs = [(256, c, 257), (c, 256, 259), (a, b, 256), (b, c, 258)];
        let merges = Merges::new(std::array::from_fn(|byte| byte as u32), &pairs);
        let last: Vec<Pair> =
            texts.iter().filter_map(|text| merges.last_pair(text.as_bytes(), None).unwrap()).collect();
        assert_eq!(last.len(), 4);
        let reduced = merges.reduced_to(&last);
        for piece in ["abc", "cabc", "bcab", "abcabcab", "cbcab"] {
            let (mut all, mut few) = (Vec::new(), Vec::new());
            merges.merge(piece.as_bytes(), &mut all).unwrap();
            reduced.merge(piece.as_bytes(), &mut few).unwrap();
            assert_eq!(all, few, "{piece}");
        }
    }

    /// If `ab` were merged up front, `x` and `ab` would be merged before `w` and `x`.
    #[test]
    fn a_pair_whose_result_ranks_before_it_is_not_merged_up_front() {
        let [a, b, w, x] = [b'a', b'b', b'w', b'x'].map(u32::from);
        let pairs = [(x, 258, 256), (w, x, 257), (a, b, 258)];
        let merges = Merges::new(std::array::from_fn(|byte| byte as u32), &pairs);
        let last: Vec<Pair> = ["xab", "wx", "ab"]
            .iter()
            .filter_map(|text| merges.last_pair(text.as_bytes(), None).unwrap())
            .collect();
        for merges in [&merges.reduced_to(&last), &merges] {
            let mut tokens = Vec::new();
            merges.merge(b"wxab", &mut tokens).unwrap();
            assert_eq!(tokens, [257, 258]);
        }
    }

    #[test]
    fn empty_and_single_byte_pieces() {
        let mut tokens = Vec::new();
        let (merges, _) = merges();
        merges.merge(b"", &mut tokens).unwrap();
        assert!(tokens.is_empty());
        merges.merge(b"x", &mut tokens).unwrap();
        assert_eq!(tokens, [u32::from(b'x')]);
    }
}
