//! Merges several short pieces together: their lookups of ranks are prefetched, so that the cache misses of one piece overlap with the
//! work on the others. Each step is a loop over all pieces that are not complete, without branches that depend on one piece.

use super::merge::{Merges, NO_BYTE_PAIR, NO_PAIR, POSITION_BITS, minimum, rank_and_position, split_rank};
use super::pair_ranks::{NO_RANK, NO_SYMBOL, Probe};
#[cfg(target_arch = "x86_64")]
use crate::cpu_features::has_avx512;
use crate::memory::{self, OutOfMemory};

/// Maximum number of pieces in a group.
pub const MAX_PIECES: usize = 32;
/// Maximum bytes of a piece.
pub const MAX_BYTES: usize = POSITIONS - 2;
/// The pairs of shorter pieces are in the first half of a lane.
pub const HALF: usize = POSITIONS / 2;

/// Size of the arrays of a lane: one position for each byte, one before and one after them. Positions are bits of a mask.
const POSITIONS: usize = 32;

/// One piece while it is merged. Its symbols are at the positions of their first bytes, counted from 1. [`NO_SYMBOL`] is before the first
/// and after the last one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lane {
    ids: [u32; POSITIONS],
    /// The rank and position of the pair that begins at each symbol.
    ranks: [i32; POSITIONS],
    /// One bit for each symbol, and for the positions before the first and after the last one.
    symbols: u32,
    /// The position after the last symbol.
    end: u32,
}

/// A lookup of the pair that begins at a position of a lane.
#[derive(Clone, Copy, Default)]
struct Lookup {
    lane: u32,
    position: u32,
    probe: Probe,
}

/// Working memory for a group.
pub struct Group {
    lanes: Vec<Lane>,
    /// The positions whose ranks are looked up first, with their lanes.
    pending: Box<[u32; MAX_PIECES * POSITIONS + HALF]>,
    lookups: Box<[Lookup; MAX_PIECES * POSITIONS]>,
}

impl Group {
    /// Allocates it.
    pub fn new() -> Result<Group, OutOfMemory> {
        let lane = Lane { ids: [NO_SYMBOL; POSITIONS], ranks: [NO_PAIR; POSITIONS], symbols: 0, end: 0 };
        Ok(Group {
            lanes: memory::filled(lane, MAX_PIECES)?,
            pending: memory::array(0)?,
            lookups: memory::array(Lookup::default())?,
        })
    }
}

/// The bits below a position.
#[inline(always)]
fn below(position: usize) -> u32 {
    (1u32 << position).wrapping_sub(1)
}

impl Lane {
    /// The position of the symbol after another one.
    #[inline(always)]
    fn next(&self, position: usize) -> usize {
        (self.symbols & (u32::MAX - 1) << position).trailing_zeros() as usize % POSITIONS
    }

    /// The position of the symbol before another one.
    #[inline(always)]
    fn previous(&self, position: usize) -> usize {
        (self.symbols & below(position) | 1).ilog2() as usize
    }

    /// Begins with the bytes of a piece. Byte pairs without a rival of lower rank are merged at once. Returns one bit for each position
    /// whose rank must be looked up then.
    #[inline(always)]
    fn start<const WIDTH: usize>(&mut self, merges: &Merges, piece: &[u8]) -> u32 {
        let end = piece.len() + 1;
        self.ranks[..WIDTH].fill(NO_PAIR);
        let byte_pair = |index: usize| match piece.get(index + 1) {
            Some(second) => merges.byte_pair(piece[index], *second),
            None => NO_BYTE_PAIR,
        };
        // One bit for each position where such a pair begins. No two of them share a byte.
        let mut independent = 0u32;
        let (mut before, mut own, mut is_second) = (NO_RANK, byte_pair(0), false);
        for (index, byte) in piece.iter().enumerate() {
            let after = byte_pair(index + 1);
            let position = (index + 1) % POSITIONS;
            let (rank, is_first) = (own.rank(), own.is_independent(before, after));
            self.ids[position] = if is_first { Merges::internal(rank) } else { merges.byte_id(*byte) };
            self.ranks[position] = if is_second { NO_PAIR } else { rank_and_position(rank, position) };
            independent |= u32::from(is_first) << position;
            (before, own, is_second) = (own.rival_left(), after, is_first);
        }
        self.ids[end % POSITIONS] = NO_SYMBOL;
        self.end = end as u32;
        self.symbols = (below(end) | 1 << end) & !(independent << 1);
        let last = self.previous(end);
        self.ranks[last] = NO_PAIR;
        // The pairs that begin at merged symbols, and those before them.
        (independent | independent >> 1 | independent >> 2) & self.symbols & below(last) & !1
    }

    /// Starts the lookup of the rank of the pair that begins at a position.
    #[inline(always)]
    fn probe(&self, merges: &Merges, position: usize) -> Probe {
        merges.pairs.probe(self.ids[position], self.ids[self.next(position)])
    }

    /// Ends a lookup.
    #[inline(always)]
    fn resolve(&mut self, merges: &Merges, position: usize, probe: Probe) {
        let (left, right) = (self.ids[position], self.ids[self.next(position)]);
        let rank = merges.pairs.probed_rank(probe, left, right);
        self.ranks[position] = rank_and_position(rank, position);
    }

    /// Applies a merge. Returns the positions of its symbol and of the one before it, whose ranks change.
    #[inline(always)]
    fn merge(&mut self, merges: &Merges, best: i32) -> [usize; 2] {
        let (rank, position) = split_rank(best);
        let position = position % POSITIONS;
        let behind = self.next(position);
        self.symbols &= !(1 << behind);
        self.ids[position] = merges.token(rank);
        self.ranks[behind] = NO_PAIR;
        [position, self.previous(position)]
    }

    /// One bit for each symbol.
    #[inline(always)]
    fn own_symbols(&self) -> u32 {
        self.symbols & below(self.end as usize) & !1
    }
}

/// Appends the positions of the set bits to a list, as numbers from `first` on. Behind the list there is room for [`HALF`] numbers.
#[inline(always)]
fn push_bits(list: &mut [u32], count: &mut usize, mut mask: u32, first: u32) {
    while mask != 0 {
        list[*count] = first + mask.trailing_zeros();
        *count += 1;
        mask &= mask - 1;
    }
}

/// The same without a branch.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
fn push_bits_avx512<const WIDTH: usize>(list: &mut [u32], count: &mut usize, mask: u32, first: u32) {
    use std::arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_maskz_compress_epi32, _mm512_set1_epi32, _mm512_setr_epi32,
        _mm512_storeu_si512,
    };
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for half in (0..WIDTH as u32).step_by(HALF) {
        let numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32((first + half) as i32));
        let mask = (mask >> half) as u16;
        let to = &mut list[*count..*count + HALF];
        // SAFETY: the slice has room for a vector.
        unsafe {
            let found = _mm512_maskz_compress_epi32(mask, numbers);
            _mm512_storeu_si512(to.as_mut_ptr().cast::<__m512i>(), found);
        }
        *count += mask.count_ones() as usize;
    }
}

impl Merges {
    /// Merges pieces of 1 to [`MAX_BYTES`] bytes, at most [`MAX_PIECES`]. Appends their tokens, and sets the number of tokens of each.
    pub fn merge_group(
        &self,
        group: &mut Group,
        pieces: &[&[u8]],
        tokens: &mut Vec<i32>,
        counts: &mut [u32; MAX_PIECES],
    ) -> Result<(), OutOfMemory> {
        memory::reserve(tokens, pieces.len() * POSITIONS)?;
        let longest = pieces.iter().map(|piece| piece.len()).max().unwrap_or(0);
        debug_assert!(longest <= MAX_BYTES);
        #[cfg(target_arch = "x86_64")]
        if has_avx512() {
            // SAFETY: the processor has these instructions.
            unsafe { self.merge_group_avx512(group, pieces, longest < HALF, tokens, counts) };
            return Ok(());
        }
        if longest < HALF {
            self.merge_group_of::<HALF>(group, pieces, tokens, counts, push_bits);
        } else {
            self.merge_group_of::<POSITIONS>(group, pieces, tokens, counts, push_bits);
        }
        Ok(())
    }

    /// The same code, compiled for AVX-512: finding the lowest rank takes a third of the instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
    fn merge_group_avx512(
        &self,
        group: &mut Group,
        pieces: &[&[u8]],
        are_short: bool,
        tokens: &mut Vec<i32>,
        counts: &mut [u32; MAX_PIECES],
    ) {
        if are_short {
            let push = |list: &mut [u32], count: &mut usize, mask, first| {
                push_bits_avx512::<HALF>(list, count, mask, first);
            };
            self.merge_group_of::<HALF>(group, pieces, tokens, counts, push);
        } else {
            let push = |list: &mut [u32], count: &mut usize, mask, first| {
                push_bits_avx512::<POSITIONS>(list, count, mask, first);
            };
            self.merge_group_of::<POSITIONS>(group, pieces, tokens, counts, push);
        }
    }

    #[inline(always)]
    fn merge_group_of<const WIDTH: usize>(
        &self,
        Group { lanes, pending, lookups }: &mut Group,
        pieces: &[&[u8]],
        tokens: &mut Vec<i32>,
        counts: &mut [u32; MAX_PIECES],
        push_bits: impl Fn(&mut [u32], &mut usize, u32, u32),
    ) {
        let mut count = 0;
        for (index, (lane, piece)) in lanes.iter_mut().zip(pieces).enumerate() {
            let mask = lane.start::<WIDTH>(self, piece);
            push_bits(&mut **pending, &mut count, mask, (index * POSITIONS) as u32);
        }
        let split = |number: u32| (number as usize / POSITIONS % MAX_PIECES, number as usize % POSITIONS);
        for (number, lookup) in pending[..count].iter().zip(&mut **lookups) {
            let (lane, position) = split(*number);
            lookup.probe = lanes[lane].probe(self, position);
        }
        for (number, lookup) in pending[..count].iter().zip(&**lookups) {
            let (lane, position) = split(*number);
            lanes[lane].resolve(self, position, lookup.probe);
        }
        // The lanes that are not complete, and the next merge of each.
        let mut active: [(u32, i32); MAX_PIECES] = std::array::from_fn(|lane| (lane as u32, NO_PAIR));
        let mut count = pieces.len();
        loop {
            let mut incomplete = 0;
            for index in 0..count {
                let (lane, _) = active[index];
                let best = minimum(&lanes[lane as usize % MAX_PIECES].ranks[..WIDTH]);
                active[incomplete] = (lane, best);
                incomplete += usize::from(split_rank(best).0 < NO_RANK);
            }
            count = incomplete;
            if count == 0 {
                break;
            }
            let lookups = &mut lookups[..2 * count];
            for ((lane, best), lookups) in active[..count].iter().zip(lookups.as_chunks_mut::<2>().0) {
                let own = &mut lanes[*lane as usize % MAX_PIECES];
                let positions = own.merge(self, *best);
                for (position, lookup) in positions.into_iter().zip(lookups) {
                    let probe = own.probe(self, position % POSITIONS);
                    *lookup = Lookup { lane: *lane, position: position as u32, probe };
                }
            }
            for Lookup { lane, position, probe } in &*lookups {
                let lane = &mut lanes[*lane as usize % MAX_PIECES];
                lane.resolve(self, *position as usize % POSITIONS, *probe);
            }
        }
        let mut count = 0;
        for (index, (lane, tokens)) in lanes.iter().zip(counts).take(pieces.len()).enumerate() {
            let symbols = lane.own_symbols();
            *tokens = symbols.count_ones();
            push_bits(&mut **pending, &mut count, symbols, (index * POSITIONS) as u32);
        }
        tokens.extend(pending[..count].iter().map(|number| {
            let (lane, position) = split(*number);
            self.id(lanes[lane].ids[position]) as i32
        }));
    }
}

const _: () = assert!(POSITIONS == u32::BITS as usize && POSITIONS <= 1 << POSITION_BITS && MAX_PIECES <= 32);

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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn bits_become_the_same_positions_with_avx512() {
        if !has_avx512() {
            return;
        }
        for mask in [0, 1, 0x8000, 0xffff, 0x1_0000, 0x8000_0001, 0xaaaa_5555, u32::MAX] {
            let (mut expected, mut found) = ([7; 2 * POSITIONS + HALF], [7; 2 * POSITIONS + HALF]);
            let mut counts = [3, 3];
            push_bits(&mut expected, &mut counts[0], mask, 96);
            // SAFETY: the processor has these instructions.
            unsafe { push_bits_avx512::<POSITIONS>(&mut found, &mut counts[1], mask, 96) };
            assert_eq!((counts[0], &expected[..counts[0]]), (counts[1], &found[..counts[1]]), "{mask:x}");
        }
    }

    proptest! {
        #[test]
        fn pieces_in_a_group_become_the_tokens_of_each_alone(
            // Not the text alone: proptest would parse it for each piece.
            pieces in prop::collection::vec(prop::string::string_regex("[abcd]{1,30}").unwrap(), 0..=MAX_PIECES),
            longest in 1..=MAX_BYTES,
        ) {
            let pieces: Vec<String> =
                pieces.into_iter().map(|piece| piece[..longest.min(piece.len())].to_owned()).collect();
            let mut group = Group::new().unwrap();
            for merges in merges() {
                // The second time lanes have the contents of other pieces.
                for pieces in [pieces.clone(), pieces.iter().rev().cloned().collect()] {
                    let bytes: Vec<&[u8]> = pieces.iter().map(String::as_bytes).collect();
                    let expected: Vec<Vec<u32>> = bytes.iter().map(|piece| {
                        let mut tokens = Vec::with_capacity(piece.len());
                        merges.merge(piece, &mut tokens).unwrap();
                        tokens
                    }).collect();
                    for may_have_avx512 in [true, false] {
                        let (mut tokens, mut counts) = (vec![-7], [0; MAX_PIECES]);
                        if may_have_avx512 {
                            merges.merge_group(&mut group, &bytes, &mut tokens, &mut counts).unwrap();
                        } else {
                            merges.merge_group_of::<POSITIONS>(&mut group, &bytes, &mut tokens, &mut counts, push_bits);
                        }
                        let tokens: Vec<u32> = tokens[1..].iter().map(|token| *token as u32).collect();
                        prop_assert_eq!(tokens, expected.concat(), "{:?}", pieces);
                        for (expected, count) in expected.iter().zip(counts) {
                            prop_assert_eq!(expected.len(), count as usize);
                        }
                    }
                }
            }
        }
    }
}
