//! Byte-pair merging: of a piece's bytes, the pair of lowest rank is joined, the leftmost first, until no pair can be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which pairs can be joined: their rank and what they become.
pub struct Merges {
    /// The token of each byte.
    bytes: [u32; 256],
    /// Open addressing, keyed by both ids; [`NO_PAIR`] for an empty slot.
    pairs: Vec<Pair>,
    shift: u32,
}

#[derive(Clone, Copy)]
struct Pair {
    key: u64,
    rank: u32,
    token: u32,
}

const NO_PAIR: u64 = u64::MAX;
/// The rank of a pair that cannot be joined.
const NEVER: u32 = u32::MAX;

/// Pieces of at most so many bytes are merged on the stack, by looking through all pairs each time.
const SHORT: usize = 48;

impl Merges {
    /// From the token of each byte, and pairs with what they become, in the order of their ranks. A pair that is there twice
    /// has its last rank.
    pub fn new(bytes: [u32; 256], pairs: &[(u32, u32, u32)]) -> Merges {
        let size = (pairs.len() * 2).next_power_of_two().max(16);
        let empty = Pair { key: NO_PAIR, rank: NEVER, token: 0 };
        let mut merges = Merges { bytes, pairs: vec![empty; size], shift: 64 - size.trailing_zeros() };
        for (&(left, right, token), rank) in pairs.iter().zip(0..) {
            let place = merges.place(left, right);
            merges.pairs[place] = Pair { key: key(left, right), rank, token };
        }
        merges
    }

    /// Where a pair is, or where it would be.
    #[inline]
    fn place(&self, left: u32, right: u32) -> usize {
        let wanted = key(left, right);
        let mask = self.pairs.len() - 1;
        let mut place = (wanted.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        while self.pairs[place].key != wanted && self.pairs[place].key != NO_PAIR {
            place = (place + 1) & mask;
        }
        place
    }

    #[inline]
    fn pair(&self, left: u32, right: u32) -> (u32, u32) {
        let pair = &self.pairs[self.place(left, right)];
        (pair.rank, pair.token)
    }

    /// Adds the tokens of a piece.
    pub fn merge(&self, piece: &[u8], tokens: &mut Vec<u32>) {
        match piece.len() {
            0 => {}
            1 => tokens.push(self.bytes[usize::from(piece[0])]),
            2..=SHORT => self.merge_short(piece, tokens),
            _ => self.merge_long(piece, tokens),
        }
    }

    fn merge_short(&self, piece: &[u8], tokens: &mut Vec<u32>) {
        let mut ids = [0u32; SHORT];
        let mut ranks = [NEVER; SHORT];
        let mut joined = [0u32; SHORT];
        let mut count = piece.len();
        for (id, byte) in ids.iter_mut().zip(piece) {
            *id = self.bytes[usize::from(*byte)];
        }
        for place in 0..count - 1 {
            (ranks[place], joined[place]) = self.pair(ids[place], ids[place + 1]);
        }
        loop {
            let (mut best, mut rank) = (0, NEVER);
            for (place, &other) in ranks[..count - 1].iter().enumerate() {
                if other < rank {
                    (best, rank) = (place, other);
                }
            }
            if rank == NEVER {
                break;
            }
            ids[best] = joined[best];
            ids.copy_within(best + 2..count, best + 1);
            ranks.copy_within(best + 1..count - 1, best);
            joined.copy_within(best + 1..count - 1, best);
            count -= 1;
            if best + 1 < count {
                (ranks[best], joined[best]) = self.pair(ids[best], ids[best + 1]);
            }
            if best > 0 {
                (ranks[best - 1], joined[best - 1]) = self.pair(ids[best - 1], ids[best]);
            }
            if count == 1 {
                break;
            }
        }
        tokens.extend_from_slice(&ids[..count]);
    }

    /// With a queue, so that the time stays near linear whatever the length.
    fn merge_long(&self, piece: &[u8], tokens: &mut Vec<u32>) {
        const GONE: u32 = u32::MAX;
        let mut ids: Vec<u32> = piece.iter().map(|byte| self.bytes[usize::from(*byte)]).collect();
        let last = ids.len() - 1;
        let mut next: Vec<u32> = (1..=ids.len() as u32).collect();
        let mut previous: Vec<u32> = (0..ids.len() as u32).map(|place| place.wrapping_sub(1)).collect();
        let mut queue = BinaryHeap::with_capacity(ids.len());
        // What a pair was when it was queued tells whether it still is.
        let offer = |queue: &mut BinaryHeap<_>, ids: &[u32], left: usize, right: usize| {
            let (rank, token) = self.pair(ids[left], ids[right]);
            if rank != NEVER {
                queue.push(Reverse((rank, left as u32, ids[left], ids[right], token)));
            }
        };
        for place in 0..last {
            offer(&mut queue, &ids, place, place + 1);
        }
        while let Some(Reverse((_, place, left, right, token))) = queue.pop() {
            let place = place as usize;
            let behind = next[place] as usize;
            if ids[place] != left || behind > last || ids[behind] != right {
                continue;
            }
            ids[place] = token;
            ids[behind] = GONE;
            next[place] = next[behind];
            let after = next[place] as usize;
            if after <= last {
                previous[after] = place as u32;
                offer(&mut queue, &ids, place, after);
            }
            let before = previous[place] as usize;
            if before <= last {
                offer(&mut queue, &ids, before, place);
            }
        }
        let mut place = 0;
        while place <= last {
            tokens.push(ids[place]);
            place = next[place] as usize;
        }
    }
}

#[inline]
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes are their own tokens; some pairs of small letters and of what became of them are joined.
    fn merges() -> Merges {
        let letters = [b'a', b'b', b'c'].map(u32::from);
        let mut pairs = Vec::new();
        let mut known = letters.to_vec();
        let mut token = 256;
        for step in 0..40usize {
            let (left, right) = (known[step * 7 % known.len()], known[step * 5 % known.len()]);
            if pairs.iter().all(|&(a, b, _)| (a, b) != (left, right)) {
                pairs.push((left, right, token));
                known.push(token);
                token += 1;
            }
        }
        Merges::new(std::array::from_fn(|byte| byte as u32), &pairs)
    }

    proptest! {
        #[test]
        fn both_ways_of_merging_agree(piece in "[abcd]{2,48}") {
            let merges = merges();
            let (mut short, mut long) = (Vec::new(), Vec::new());
            merges.merge_short(piece.as_bytes(), &mut short);
            merges.merge_long(piece.as_bytes(), &mut long);
            prop_assert_eq!(short, long);
        }
    }

    #[test]
    fn nothing_and_one_byte() {
        let mut tokens = Vec::new();
        merges().merge(b"", &mut tokens);
        assert!(tokens.is_empty());
        merges().merge(b"x", &mut tokens);
        assert_eq!(tokens, [u32::from(b'x')]);
    }
}
