//! Pairs of numbers and their ranks in a table without collisions, so that one look says whether there is such a pair.
//!
//! Looks come one after the other, each waiting for the last, most of them for pairs that are not there: what they cost is waiting
//! for memory and guessing wrong where to go on. Here nothing is searched for, and the table is little larger than what is in it.

use rustc_hash::FxHashMap;

use super::merge::{Pair, RANK_BITS};

/// The rank of every pair, found by a hash of which each group of pairs has its own variant.
pub struct Pairs {
    /// The variant of each group.
    variants: Box<[u8]>,
    /// Both numbers and their rank in one word; [`EMPTY`] for a slot that nobody has.
    slots: Box<[u64]>,
    /// Where the bits of a hash that say the group begin.
    shift: u32,
    seed: u64,
}

/// The rank of a pair that is not there.
pub const NEVER: u32 = i32::MAX as u32;

const EMPTY: u64 = u64::MAX;
/// So many pairs to a group at most, on average.
const GROUP: usize = 4;

impl Pairs {
    /// Of pairs. One that is there twice has its last rank.
    pub fn new(pairs: &[Pair]) -> Pairs {
        let ranks: FxHashMap<u64, u32> =
            pairs.iter().map(|pair| (super::merge::key(pair.left, pair.right), pair.rank)).collect();
        let groups = (ranks.len() / GROUP).next_power_of_two().max(2);
        // A quarter more than needed: the last groups find a place after a few tries.
        let size = (ranks.len() + ranks.len() / 4).max(16);
        let mut made = Pairs {
            variants: vec![0; groups].into_boxed_slice(),
            slots: vec![EMPTY; size].into_boxed_slice(),
            shift: 64 - groups.trailing_zeros(),
            seed: 0x9e37_79b9_7f4a_7c15,
        };
        let keys: Vec<u64> = ranks.keys().copied().collect();
        while !made.place(&keys) {
            made.seed = made.seed.wrapping_mul(0xd134_2543_de82_ef95) | 1;
            made.slots.fill(EMPTY);
        }
        for (key, rank) in ranks {
            let slot = made.slot(key);
            made.slots[slot] = key << RANK_BITS | u64::from(rank);
        }
        made
    }

    /// Chooses the variants, large groups first; false if some group has none with this seed.
    fn place(&mut self, keys: &[u64]) -> bool {
        let mut groups = vec![Vec::new(); self.variants.len()];
        for key in keys {
            groups[(self.hash(*key) >> self.shift) as usize].push(*key);
        }
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by_key(|group| std::cmp::Reverse(groups[*group].len()));
        for group in order {
            let fits = (0..=u8::MAX).any(|variant| {
                self.variants[group] = variant;
                let mut taken = 0;
                let all = groups[group].iter().all(|key| {
                    let slot = self.slot(*key);
                    let free = self.slots[slot] == EMPTY;
                    if free {
                        self.slots[slot] = *key;
                        taken += 1;
                    }
                    free
                });
                if !all {
                    for key in &groups[group][..taken] {
                        let slot = self.slot(*key);
                        self.slots[slot] = EMPTY;
                    }
                }
                all
            });
            if !fits {
                return false;
            }
        }
        true
    }

    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        key.wrapping_mul(self.seed)
    }

    /// Where a pair is if it is there.
    #[inline(always)]
    fn slot(&self, key: u64) -> usize {
        let hash = self.hash(key);
        let variant = u64::from(self.variants[(hash >> self.shift) as usize]);
        let mixed = (hash ^ variant.wrapping_mul(0xa076_1d64_78bd_642f)).wrapping_mul(0xe703_7ed1_a0b4_28db);
        ((u128::from(mixed) * self.slots.len() as u128) >> 64) as usize
    }

    /// The rank of a pair, or [`NEVER`].
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let wanted = super::merge::key(left, right);
        let found = self.slots[self.slot(wanted)];
        if found >> RANK_BITS == wanted { found as u32 & ((1 << RANK_BITS) - 1) } else { NEVER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_found_and_no_other() {
        for count in [0, 1, 2, 5, 100, 20_000] {
            let pair = |rank: u32| Pair { left: rank * 7 % 1009, right: rank, rank };
            let mut pairs: Vec<Pair> = (0..count).map(pair).collect();
            // The last one counts.
            pairs.extend((0..count).step_by(3).map(|rank| Pair { rank: rank + 1_000_000, ..pair(rank) }));
            let made = Pairs::new(&pairs);
            for rank in 0..count {
                let Pair { left, right, .. } = pair(rank);
                let wanted = if rank % 3 == 0 { rank + 1_000_000 } else { rank };
                assert_eq!(made.rank(left, right), wanted);
                assert_eq!(made.rank(left + 1, right), NEVER);
                assert_eq!(made.rank(left, right + count), NEVER);
            }
            assert_eq!(made.rank(0, count), NEVER);
        }
    }
}
