//! Merges several short pieces together: their lookups of ranks are prefetched, so that the cache misses of one piece overlap with the
//! work on the others.

use super::merge::{
    Merges, NO_BYTE_PAIR, NO_PAIR, POSITION_BITS, minimum, rank_and_position, rank_of, split_rank,
};
use super::pair_ranks::{NO_RANK, Probe};
#[cfg(target_arch = "x86_64")]
use crate::cpu_features::has_avx512;
use crate::memory::{self, OutOfMemory};
use crate::vocabulary::ID_BITS;

/// Maximum number of pieces in a group.
pub const MAX_PIECES: usize = 16;
/// Maximum bytes of a piece.
pub const MAX_BYTES: usize = 16;

/// Size of the arrays of a lane: positions, and one before and one after them. A power of two, so that masked indices need no check.
const POSITIONS: usize = 32;
/// The position before the first symbol.
const BEFORE: usize = MAX_BYTES + 1;
/// The symbol before the first and after the last one. No merge has it.
const NO_SYMBOL: u32 = (1 << ID_BITS) - 1;

/// One piece while it is merged. Its symbols are at the positions of their first bytes.
#[derive(Clone, Copy)]
struct Lane {
    ids: [u32; POSITIONS],
    /// The rank and position of the pair that begins at each symbol.
    ranks: [i32; POSITIONS],
    /// The positions of the symbols after and before each.
    next: [u8; POSITIONS],
    previous: [u8; POSITIONS],
    /// Lookups that were started, for the pairs that begin at each symbol.
    probes: [Probe; POSITIONS],
    /// After the byte pairs were merged: one bit for each position whose rank is being looked up. Unused later.
    pending: u32,
    /// The symbol that the last merge produced, and the one before it: the ranks of both are being looked up.
    merged: usize,
    before: usize,
    /// Number of bytes.
    count: usize,
}

/// Working memory for a group.
pub struct Group(Vec<Lane>);

impl Group {
    /// Allocates it.
    pub fn new() -> Result<Group, OutOfMemory> {
        let lane = Lane {
            ids: [NO_SYMBOL; POSITIONS],
            ranks: [NO_PAIR; POSITIONS],
            next: NEXT,
            previous: PREVIOUS,
            probes: [Probe::default(); POSITIONS],
            pending: 0,
            merged: 0,
            before: 0,
            count: 0,
        };
        Ok(Group(memory::filled(lane, MAX_PIECES)?))
    }
}

const NEXT: [u8; POSITIONS] = {
    let mut next = [0; POSITIONS];
    let mut position = 0;
    while position < POSITIONS {
        next[position] = position as u8 + 1;
        position += 1;
    }
    // The first symbol comes after the position before it.
    next[BEFORE] = 0;
    next
};

const PREVIOUS: [u8; POSITIONS] = {
    let mut previous = [0; POSITIONS];
    let mut position = 1;
    while position < POSITIONS {
        previous[position] = position as u8 - 1;
        position += 1;
    }
    previous[0] = BEFORE as u8;
    previous
};

/// The positions of the set bits.
#[inline(always)]
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let position = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        position
    })
}

impl Lane {
    #[inline(always)]
    fn next(&self, position: usize) -> usize {
        usize::from(self.next[position % POSITIONS]) % POSITIONS
    }

    #[inline(always)]
    fn previous(&self, position: usize) -> usize {
        usize::from(self.previous[position % POSITIONS]) % POSITIONS
    }

    /// Begins with the bytes of a piece. Byte pairs without a rival of lower rank are merged at once.
    #[inline(always)]
    fn start(&mut self, merges: &Merges, piece: &[u8]) {
        self.count = piece.len();
        self.ranks = [NO_PAIR; POSITIONS];
        (self.next, self.previous) = (NEXT, PREVIOUS);
        let byte_pair = |position: usize| match piece.get(position + 1) {
            Some(second) => merges.byte_pair(piece[position], *second),
            None => NO_BYTE_PAIR,
        };
        // One bit for each position where such a pair begins. No two of them share a byte.
        let mut independent = 0u32;
        let (mut before, mut own) = (NO_RANK, byte_pair(0));
        for (position, byte) in piece.iter().enumerate() {
            let after = byte_pair(position + 1);
            self.ids[position] = merges.byte_id(*byte);
            self.ranks[position] = rank_and_position(own.rank, position);
            independent |= u32::from((own.rank < before) & (own.rank < after.rival_right)) << position;
            (before, own) = (own.rival_left, after);
        }
        self.ids[self.count] = NO_SYMBOL;
        self.pending = 0;
        for position in bits(independent) {
            self.merge(merges, rank_of(self.ranks[position]), position);
            self.pending |= 1 << position | 1 << self.before;
        }
        for position in bits(self.pending) {
            self.probe(merges, position);
        }
    }

    /// Merges the pair of symbols at a position.
    #[inline(always)]
    fn merge(&mut self, merges: &Merges, rank: u32, position: usize) {
        let behind = self.next(position);
        let after = self.next(behind);
        self.next[position] = after as u8;
        self.previous[after] = position as u8;
        self.ids[position] = merges.token(rank);
        self.ranks[behind] = NO_PAIR;
        (self.merged, self.before) = (position, self.previous(position));
    }

    /// Starts the lookup of the rank of the pair that begins at a position.
    #[inline(always)]
    fn probe(&mut self, merges: &Merges, position: usize) {
        let (left, right) = (self.ids[position], self.ids[self.next(position)]);
        self.probes[position] = merges.pairs.probe(left, right);
    }

    /// Ends a lookup.
    #[inline(always)]
    fn resolve(&mut self, merges: &Merges, position: usize) {
        let (left, right) = (self.ids[position], self.ids[self.next(position)]);
        let rank = merges.pairs.probed_rank(self.probes[position], left, right);
        self.ranks[position] = rank_and_position(rank, position);
    }

    /// Applies the merge of lowest rank and starts the lookups of the ranks on both sides of its symbol. Returns whether there was one.
    #[inline(always)]
    fn step(&mut self, merges: &Merges) -> bool {
        // The rank at the position before the first symbol does not count.
        let (rank, position) = split_rank(minimum(&self.ranks[..MAX_BYTES]));
        if rank >= NO_RANK {
            return false;
        }
        self.merge(merges, rank, position % POSITIONS);
        self.probe(merges, self.merged % POSITIONS);
        self.probe(merges, self.before % POSITIONS);
        true
    }
}

impl Merges {
    /// Merges pieces of 1 to [`MAX_BYTES`] bytes, at most [`MAX_PIECES`]. Calls `each` with the index of a piece and each of its tokens.
    pub fn merge_group<'a>(
        &self,
        group: &mut Group,
        pieces: impl Iterator<Item = &'a [u8]>,
        each: impl FnMut(usize, u32),
    ) {
        #[cfg(target_arch = "x86_64")]
        if has_avx512() {
            // SAFETY: the processor has these instructions.
            return unsafe { self.merge_group_avx512(group, pieces, each) };
        }
        self.merge_group_of(group, pieces, each);
    }

    /// The same code, compiled for AVX-512: finding the lowest rank takes a third of the instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn merge_group_avx512<'a>(
        &self,
        group: &mut Group,
        pieces: impl Iterator<Item = &'a [u8]>,
        each: impl FnMut(usize, u32),
    ) {
        self.merge_group_of(group, pieces, each);
    }

    #[inline(always)]
    fn merge_group_of<'a>(
        &self,
        Group(lanes): &mut Group,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut each: impl FnMut(usize, u32),
    ) {
        let mut count = 0;
        for (lane, piece) in lanes.iter_mut().zip(pieces) {
            lane.start(self, piece);
            count += 1;
        }
        let mut active = 0u32;
        for lane in &mut lanes[..count] {
            for position in bits(lane.pending) {
                lane.resolve(self, position);
            }
        }
        for (index, lane) in lanes[..count].iter_mut().enumerate() {
            active |= u32::from(lane.step(self)) << index;
        }
        while active != 0 {
            for index in bits(active) {
                let lane = &mut lanes[index];
                lane.resolve(self, lane.merged % POSITIONS);
                lane.resolve(self, lane.before % POSITIONS);
            }
            // In a loop of its own, because loading a vector of ranks right after storing one of them stalls.
            for index in bits(active) {
                if !lanes[index].step(self) {
                    active &= !(1 << index);
                }
            }
        }
        for (index, lane) in lanes[..count].iter().enumerate() {
            let mut position = 0;
            while position < lane.count {
                each(index, self.id(lane.ids[position]));
                position = lane.next(position);
            }
        }
    }
}

const _: () = assert!(BEFORE < POSITIONS && POSITIONS <= 1 << POSITION_BITS && MAX_PIECES < 32);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::byte_bpe::merge::Pair;

    /// Merges over the letters a, b and c, with internal ids, and without.
    fn merges() -> [Merges; 2] {
        let mut texts: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut pairs = Vec::new();
        let mut known = [b'a', b'b', b'c'].map(u32::from).to_vec();
        for step in 0..60usize {
            let (left, right) = (known[step * 7 % known.len()], known[step * 5 % known.len()]);
            let text = [&texts[left as usize][..], &texts[right as usize]].concat();
            if pairs.iter().all(|&(a, b, _)| (a, b) != (left, right)) && !texts.contains(&text) {
                known.push(texts.len() as u32);
                pairs.push((left, right, texts.len() as u32));
                texts.push(text);
            }
        }
        let all = Merges::new(std::array::from_fn(|byte| byte as u32), &pairs);
        let last: Vec<Pair> = texts.iter().filter_map(|text| all.last_pair(text, None).unwrap()).collect();
        [all.reduced_to(&last), all]
    }

    proptest! {
        #[test]
        fn pieces_in_a_group_become_the_tokens_of_each_alone(
            // Not the text alone: proptest would parse it for each piece.
            pieces in prop::collection::vec(prop::string::string_regex("[abcd]{1,16}").unwrap(), 0..=MAX_PIECES),
        ) {
            let mut group = Group::new().unwrap();
            for merges in merges() {
                // The second time lanes have the contents of other pieces.
                for pieces in [pieces.clone(), pieces.iter().rev().cloned().collect()] {
                    let mut found = vec![Vec::new(); pieces.len()];
                    let bytes = pieces.iter().map(String::as_bytes);
                    merges.merge_group(&mut group, bytes, |piece, token| found[piece].push(token));
                    for (piece, found) in pieces.iter().zip(found) {
                        let mut expected = Vec::new();
                        merges.merge(piece.as_bytes(), &mut expected).unwrap();
                        prop_assert_eq!(found, expected, "{}", piece);
                    }
                }
            }
        }
    }
}
