//! Byte-pair merging: of a piece's bytes, the pair of lowest rank is joined, the leftmost first, until no pair can be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::pairs::{NEVER, Pairs};

/// Which pairs can be joined: their rank and what they become.
///
/// Inside, tokens may have numbers of their own: bytes first, then what pairs become, in the order of their ranks. Then nobody has to
/// look up what a pair becomes.
pub struct Merges {
    /// The number of each byte.
    bytes: [u32; 256],
    /// What is known of every two bytes, which is what pieces begin as.
    starts: Box<[Start]>,
    pairs: Pairs,
    /// What a pair of each rank becomes; none where numbers are our own.
    tokens: Vec<u32>,
    /// The token of each number of our own.
    ids: Vec<u32>,
}

/// Two bytes that stand alone: the rank of their pair, and of what might take one of them away before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Start {
    rank: u32,
    /// The least rank of a pair of something that ends with the first byte, and the second alone.
    ending: u32,
    /// The least rank of a pair of the first byte alone, and something that begins with the second.
    beginning: u32,
}

const NO_START: Start = Start { rank: NEVER, ending: NEVER, beginning: NEVER };

/// A pair that can be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// The token that comes first.
    pub left: u32,
    /// The token that comes second.
    pub right: u32,
    /// Pairs of lower ranks are joined before.
    pub rank: u32,
}

/// How many bytes there are.
const BYTES: usize = 256;
/// Bits of an id and of a rank: two ids and a rank fill a word.
pub const ID_BITS: u32 = 21;
/// As above.
pub const RANK_BITS: u32 = 22;
/// So many tokens there is room for: bytes have numbers besides, and the last one is left for empty slots.
pub const MOST_IDS: usize = (1 << ID_BITS) - BYTES - 1;
/// So many pairs there is room for.
pub const MOST_PAIRS: usize = (1 << RANK_BITS) - 1;

/// Pieces of at most so many bytes are merged on the stack, by looking through all pairs each time.
const SHORT: usize = 48;
/// What comes after all ranks with their places.
const LAST: u64 = u64::MAX;
/// Bits of a place in such a piece.
const PLACE_BITS: u32 = 6;

impl Merges {
    /// From the token of each byte, and pairs with what they become, in the order of their ranks. A pair that is there twice
    /// has its last rank. There are at most [`MOST_IDS`] ids and [`MOST_PAIRS`] pairs.
    pub fn new(bytes: [u32; 256], pairs: &[(u32, u32, u32)]) -> Merges {
        let tokens = pairs.iter().map(|&(_, _, token)| token).collect();
        let ranked = pairs.iter().zip(0..).map(|(&(left, right, _), rank)| Pair { left, right, rank });
        Merges::ranked(bytes, &ranked.collect::<Vec<_>>(), tokens)
    }

    /// Of symbols that are no bytes: from pairs with what they become, in the order of their ranks.
    pub fn of_symbols(pairs: &[(u32, u32, u32)]) -> Merges {
        Merges::new([0; BYTES], pairs)
    }

    /// The same with these pairs alone, which are of these merges and make each token from its own.
    pub fn with(&self, pairs: &[Pair]) -> Merges {
        let mut pairs = pairs.to_vec();
        pairs.sort_unstable_by_key(|pair| pair.rank);
        let mut ids = self.bytes.to_vec();
        ids.extend(pairs.iter().map(|pair| self.token(pair.rank)));
        let numbers: FxHashMap<u32, u32> = ids.iter().copied().zip(0..).collect();
        // What a pair is made of was made before, or is a byte.
        let number = |token: u32| numbers.get(&token).copied().unwrap_or(0);
        for (pair, rank) in pairs.iter_mut().zip(0..) {
            *pair = Pair { left: number(pair.left), right: number(pair.right), rank };
        }
        let bytes = std::array::from_fn(|byte| byte as u32);
        let mut merges = Merges { ids, ..Merges::ranked(bytes, &pairs, Vec::new()) };
        merges.find_rivals(&pairs);
        merges
    }

    /// Finds what might take a byte away, where numbers are our own: these pairs in the order of their ranks.
    fn find_rivals(&mut self, pairs: &[Pair]) {
        for start in &mut self.starts {
            (start.ending, start.beginning) = (NEVER, NEVER);
        }
        // What a number is made of is shorter, so this ends at a byte.
        let end = |mut number: u32, side: fn(&Pair) -> u32| {
            while let Some(rank) = (number as usize).checked_sub(BYTES) {
                number = side(&pairs[rank]);
            }
            number as usize
        };
        for &Pair { left, right, rank } in pairs {
            if right < BYTES as u32 {
                let start = &mut self.starts[end(left, |pair| pair.right) << 8 | right as usize];
                start.ending = start.ending.min(rank);
            }
            if left < BYTES as u32 {
                let start = &mut self.starts[(left as usize) << 8 | end(right, |pair| pair.left)];
                start.beginning = start.beginning.min(rank);
            }
        }
    }

    fn ranked(bytes: [u32; BYTES], pairs: &[Pair], tokens: Vec<u32>) -> Merges {
        let mut merges =
            Merges { bytes, starts: Box::default(), pairs: Pairs::new(pairs), tokens, ids: Vec::new() };
        let of_bytes = |place: usize| {
            let rank = merges.rank(bytes[place >> 8], bytes[place & 255]);
            // Anything might.
            Start { rank, ending: 0, beginning: 0 }
        };
        merges.starts = (0..1 << 16).map(of_bytes).collect();
        merges
    }

    #[inline(always)]
    fn rank(&self, left: u32, right: u32) -> u32 {
        self.pairs.rank(left, right)
    }

    /// What a pair of this rank becomes.
    #[inline]
    pub fn token(&self, rank: u32) -> u32 {
        if self.tokens.is_empty() { BYTES as u32 + rank } else { self.tokens[rank as usize] }
    }

    /// The token of a number.
    #[inline]
    fn id(&self, number: u32) -> u32 {
        if self.ids.is_empty() { number } else { self.ids[number as usize] }
    }

    /// Adds the tokens of a piece.
    pub fn merge(&self, piece: &[u8], tokens: &mut Vec<u32>) {
        match piece.len() {
            0 => {}
            1 => tokens.push(self.id(self.bytes[usize::from(piece[0])])),
            2..=SHORT => {
                self.merge_short(piece, |token, _| tokens.push(token));
            }
            _ => {
                self.merge_long(piece, |token, _| tokens.push(token));
            }
        }
    }

    /// Adds the tokens of some symbols, each with how many of them it is made of.
    pub fn join(&self, symbols: &[u32], tokens: &mut Vec<(u32, u32)>) {
        self.join_all(symbols, |token, count| tokens.push((token, count)));
    }

    /// The pair that was joined last, where one token is left of a piece.
    pub fn last_pair(&self, piece: &[u8]) -> Option<Pair> {
        let symbols: Vec<u32> = piece.iter().map(|byte| self.bytes[usize::from(*byte)]).collect();
        let mut count = 0;
        self.join_all(&symbols, |_, _| count += 1).filter(|_| count == 1)
    }

    /// Returns the pair that was joined last.
    fn join_all(&self, symbols: &[u32], each: impl FnMut(u32, u32)) -> Option<Pair> {
        if symbols.is_empty() {
            return None;
        }
        if symbols.len() > SHORT {
            return self.join_long(symbols.to_vec(), each);
        }
        let (mut ids, mut ranks) = ([0; SHORT], [LAST; SHORT]);
        ids[..symbols.len()].copy_from_slice(symbols);
        for place in 0..symbols.len() - 1 {
            ranks[place] = with_place(self.rank(symbols[place], symbols[place + 1]), place);
        }
        self.join_short(&mut ids, &mut ranks, &mut Links::new(), symbols.len(), each)
    }

    /// Joins at once what would be joined in the end: two bytes of which no pair of lower rank can take one away. What they become is
    /// then looked up side by side, and not one after the other.
    #[inline]
    fn merge_short(&self, piece: &[u8], each: impl FnMut(u32, u32)) {
        let (mut ids, mut ranks, mut links) = ([0u32; SHORT], [LAST; SHORT], Links::new());
        let start = |place: usize| match piece.get(place + 1) {
            Some(second) => self.starts[usize::from(piece[place]) << 8 | usize::from(*second)],
            None => NO_START,
        };
        // One bit for each place where such a pair begins. No two of them share a byte.
        let mut at_once = 0u64;
        let (mut before, mut own) = (NEVER, start(0));
        for (place, byte) in piece.iter().enumerate() {
            let after = start(place + 1);
            ids[place] = self.bytes[usize::from(*byte)];
            ranks[place] = with_place(own.rank, place);
            at_once |= u64::from((own.rank < before) & (own.rank < after.beginning)) << place;
            (before, own) = (own.ending, after);
        }
        let mut rest = at_once;
        while rest != 0 {
            let place = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            ids[place] = self.token((ranks[place] >> PLACE_BITS) as u32);
            ranks[place + 1] = LAST;
            links.skip(place, place + 1);
        }
        // Pairs with what was joined have other ranks.
        let mut rest = at_once;
        while rest != 0 {
            let place = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let after = place + 2;
            ranks[place] =
                if after < piece.len() { with_place(self.rank(ids[place], ids[after]), place) } else { LAST };
            let left = usize::from(links.previous[place]);
            if left < piece.len() && at_once >> left & 1 == 0 {
                ranks[left] = with_place(self.rank(ids[left], ids[place]), left);
            }
        }
        self.join_short(&mut ids, &mut ranks, &mut links, piece.len(), each);
    }

    /// Of symbols and the ranks of the pairs that begin at each: a rank and then its place, so that the least is the one to be joined.
    /// Calls `each` with what is left and how many symbols it is made of. Returns the pair that was joined last.
    #[inline]
    fn join_short(
        &self,
        ids: &mut [u32; SHORT],
        ranks: &mut [u64; SHORT],
        Links { next, previous }: &mut Links,
        count: usize,
        mut each: impl FnMut(u32, u32),
    ) -> Option<Pair> {
        let mut last = None;
        // Whole groups, which are compared side by side.
        let groups = &mut ranks[..count.next_multiple_of(4)];
        loop {
            let least = least(groups);
            let (rank, place) = ((least >> PLACE_BITS) as u32, (least & ((1 << PLACE_BITS) - 1)) as usize);
            if rank >= NEVER {
                break;
            }
            let behind = usize::from(next[place]);
            last = Some(Pair { left: ids[place], right: ids[behind], rank });
            ids[place] = self.token(rank);
            groups[behind] = LAST;
            let after = usize::from(next[behind]);
            next[place] = after as u8;
            groups[place] = LAST;
            if after < count {
                previous[after] = place as u8;
                groups[place] = with_place(self.rank(ids[place], ids[after]), place);
            }
            let before = usize::from(previous[place]);
            if before < count {
                groups[before] = with_place(self.rank(ids[before], ids[place]), before);
            }
        }
        let mut place = 0;
        while place < count {
            let after = usize::from(next[place]);
            each(self.id(ids[place]), (after - place) as u32);
            place = after;
        }
        last
    }

    /// Returns the pair that was joined last.
    fn merge_long(&self, piece: &[u8], each: impl FnMut(u32, u32)) -> Option<Pair> {
        self.join_long(piece.iter().map(|byte| self.bytes[usize::from(*byte)]).collect(), each)
    }

    /// As the other, but with a queue, so that the time stays near linear whatever the length.
    fn join_long(&self, mut ids: Vec<u32>, mut each: impl FnMut(u32, u32)) -> Option<Pair> {
        const GONE: u32 = u32::MAX;
        let end = ids.len() - 1;
        let mut next: Vec<u32> = (1..=ids.len() as u32).collect();
        let mut previous: Vec<u32> = (0..ids.len() as u32).map(|place| place.wrapping_sub(1)).collect();
        let mut queue = BinaryHeap::with_capacity(ids.len());
        // What a pair was when it was queued tells whether it still is.
        let offer = |queue: &mut BinaryHeap<_>, ids: &[u32], left: usize, right: usize| {
            let rank = self.rank(ids[left], ids[right]);
            if rank != NEVER {
                queue.push(Reverse((rank, left as u32, ids[left], ids[right])));
            }
        };
        for place in 0..end {
            offer(&mut queue, &ids, place, place + 1);
        }
        let mut last = None;
        while let Some(Reverse((rank, place, left, right))) = queue.pop() {
            let place = place as usize;
            let behind = next[place] as usize;
            if ids[place] != left || behind > end || ids[behind] != right {
                continue;
            }
            last = Some(Pair { left, right, rank });
            ids[place] = self.token(rank);
            ids[behind] = GONE;
            next[place] = next[behind];
            let after = next[place] as usize;
            if after <= end {
                previous[after] = place as u32;
                offer(&mut queue, &ids, place, after);
            }
            let before = previous[place] as usize;
            if before <= end {
                offer(&mut queue, &ids, before, place);
            }
        }
        let mut place = 0;
        while place <= end {
            let after = next[place] as usize;
            each(self.id(ids[place]), (after - place) as u32);
            place = after;
        }
        last
    }
}

/// What is before and behind each symbol of a short piece.
struct Links {
    next: [u8; SHORT],
    previous: [u8; SHORT],
}

impl Links {
    fn new() -> Links {
        Links {
            next: std::array::from_fn(|place| place as u8 + 1),
            previous: std::array::from_fn(|place| (place as u8).wrapping_sub(1)),
        }
    }

    /// Leaves out a symbol.
    #[inline(always)]
    fn skip(&mut self, place: usize, behind: usize) {
        let after = self.next[behind];
        self.next[place] = after;
        if let Some(previous) = self.previous.get_mut(usize::from(after)) {
            *previous = place as u8;
        }
    }
}

/// The rank of a pair and where it begins.
#[inline(always)]
fn with_place(rank: u32, place: usize) -> u64 {
    u64::from(rank) << PLACE_BITS | place as u64
}

/// Both numbers of a pair as one.
#[inline(always)]
pub fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

/// The least of some groups of four.
#[inline(always)]
fn least(groups: &[u64]) -> u64 {
    let mut all = [LAST; 4];
    for group in groups.chunks_exact(4) {
        for (least, &other) in all.iter_mut().zip(group) {
            *least = (*least).min(other);
        }
    }
    all[0].min(all[1]).min(all[2].min(all[3]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes are their own tokens; some pairs of small letters and of what became of them are joined. With the bytes of every token.
    fn merges() -> (Merges, Vec<Vec<u8>>) {
        let mut texts: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut pairs = Vec::new();
        let mut known = [b'a', b'b', b'c'].map(u32::from).to_vec();
        for step in 0..40usize {
            let (left, right) = (known[step * 7 % known.len()], known[step * 5 % known.len()]);
            if pairs.iter().all(|&(a, b, _)| (a, b) != (left, right)) {
                let text = [&texts[left as usize][..], &texts[right as usize]].concat();
                // What has the same bytes is the same token.
                let token = texts.iter().position(|known| *known == text).unwrap_or(texts.len());
                if token == texts.len() {
                    texts.push(text);
                    known.push(token as u32);
                }
                pairs.push((left, right, token as u32));
            }
        }
        (Merges::new(std::array::from_fn(|byte| byte as u32), &pairs), texts)
    }

    proptest! {
        #[test]
        fn both_ways_of_merging_agree(piece in "[abcd]{2,48}") {
            let (merges, _) = merges();
            let (mut short, mut long) = (Vec::new(), Vec::new());
            merges.merge_short(piece.as_bytes(), |token, count| short.push((token, count)));
            merges.merge_long(piece.as_bytes(), |token, count| long.push((token, count)));
            prop_assert_eq!(&short, &long);
            let symbols: Vec<u32> = piece.bytes().map(u32::from).collect();
            let mut joined = Vec::new();
            merges.join(&symbols, &mut joined);
            prop_assert_eq!(joined, short);
        }
    }

    proptest! {
        #[test]
        fn the_pairs_that_tokens_come_from_are_enough(piece in "[abc]{2,60}") {
            let (merges, texts) = merges();
            let pairs: Vec<Pair> = texts.iter().filter_map(|text| merges.last_pair(text)).collect();
            let reduced = merges.with(&pairs);
            let (mut all, mut few) = (Vec::new(), Vec::new());
            merges.merge(piece.as_bytes(), &mut all);
            reduced.merge(piece.as_bytes(), &mut few);
            prop_assert_eq!(all, few);
        }
    }

    #[test]
    fn what_a_pair_is_made_of_may_have_a_higher_rank() {
        let texts = ["ab", "abc", "bc", "cab"];
        let (a, b, c) = (u32::from(b'a'), u32::from(b'b'), u32::from(b'c'));
        let pairs = [(256, c, 257), (c, 256, 259), (a, b, 256), (b, c, 258)];
        let merges = Merges::new(std::array::from_fn(|byte| byte as u32), &pairs);
        let last: Vec<Pair> = texts.iter().filter_map(|text| merges.last_pair(text.as_bytes())).collect();
        assert_eq!(last.len(), 4);
        let reduced = merges.with(&last);
        for piece in ["abc", "cabc", "bcab", "abcabcab", "cbcab"] {
            let (mut all, mut few) = (Vec::new(), Vec::new());
            merges.merge(piece.as_bytes(), &mut all);
            reduced.merge(piece.as_bytes(), &mut few);
            assert_eq!(all, few, "{piece}");
        }
    }

    #[test]
    fn nothing_and_one_byte() {
        let mut tokens = Vec::new();
        let (merges, _) = merges();
        merges.merge(b"", &mut tokens);
        assert!(tokens.is_empty());
        merges.merge(b"x", &mut tokens);
        assert_eq!(tokens, [u32::from(b'x')]);
    }
}
