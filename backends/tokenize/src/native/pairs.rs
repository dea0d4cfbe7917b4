//! Perfect-hash map from pairs of numbers to their ranks: a lookup is one probe, whether the pair is there or not.
//!
//! Lookups depend on each other and most of them miss, so that they are bound by cache misses and branch mispredicts. Here nothing is
//! searched for, and the table is little larger than its content.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use super::merge::{Pair, RANK_BITS};

/// Perfect-hash map from a pair to its rank. Each group of pairs has a displacement that leads its pairs to free slots.
///
/// Construction is bounded: a group for which no displacement works, in any of the rounds, is kept in `overflow`. With real and with
/// random pairs the first round succeeds, so that every lookup is one probe.
pub struct Pairs {
    /// The displacement of each group; [`OVERFLOWN`] for a group whose pairs are in `overflow`.
    displacements: Box<[u8]>,
    /// Both numbers and their rank in one word; [`EMPTY`] for an unused slot.
    slots: Box<[u64]>,
    /// The position of the bits of a hash that select the group.
    shift: u32,
    seed: u64,
    /// Hashed with random keys, because only definitions that are made for it have many such pairs.
    overflow: HashMap<u64, u32>,
}

/// The rank of a pair that is not in the map.
pub const NEVER: u32 = i32::MAX as u32;

const EMPTY: u64 = u64::MAX;
/// The displacement that marks a group as kept in the overflow map.
const OVERFLOWN: u8 = u8::MAX;
/// The average number of pairs per group is between half of this and this. With 4, groups of the last sizes below a power of two find
/// no displacement among 255; with 3 all do.
const GROUP: usize = 3;
/// Larger groups go to the overflow map at once: the search for a displacement that fits them would be long and in vain.
const MAX_GROUP: usize = 24;
/// Seeds that are tried before pairs are left in the overflow map. Each round has more slots.
const ROUNDS: usize = 4;

impl Pairs {
    /// Of pairs. A pair that occurs twice has its last rank.
    pub fn new(pairs: &[Pair]) -> Pairs {
        let ranks = ranks_of(pairs);
        Pairs::with_groups(&ranks, (ranks.len() / GROUP).next_power_of_two().max(2))
    }

    /// With this number of groups, a power of two.
    fn with_groups(ranks: &FxHashMap<u64, u32>, groups: usize) -> Pairs {
        let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut round = 1;
        let mut made = loop {
            // A quarter more slots than pairs in the first round.
            let size = (ranks.len() + ranks.len() / 4 * round).max(16);
            let mut made = Pairs {
                displacements: vec![0; groups].into_boxed_slice(),
                slots: vec![EMPTY; size].into_boxed_slice(),
                shift: 64 - groups.trailing_zeros(),
                seed,
                overflow: HashMap::new(),
            };
            if made.place(ranks) == 0 || round == ROUNDS {
                break made;
            }
            seed = seed.wrapping_mul(0xd134_2543_de82_ef95) | 1;
            round += 1;
        };
        for (&key, &rank) in ranks {
            let (slot, displacement) = made.slot(key);
            if displacement == OVERFLOWN {
                made.overflow.insert(key, rank);
            } else {
                made.slots[slot] = key << RANK_BITS | u64::from(rank);
            }
        }
        made
    }

    /// Chooses the displacements, large groups first, and occupies the slots. Returns the number of groups that overflow.
    fn place(&mut self, ranks: &FxHashMap<u64, u32>) -> usize {
        // Counting sort: the keys of a group are neighbors.
        let group_of = |key: u64, seed: u64, shift: u32| (key.wrapping_mul(seed) >> shift) as usize;
        let mut ends = vec![0u32; self.displacements.len() + 1];
        for &key in ranks.keys() {
            ends[group_of(key, self.seed, self.shift) + 1] += 1;
        }
        let mut order: Vec<u32> = (0..self.displacements.len() as u32).collect();
        order.sort_unstable_by_key(|group| std::cmp::Reverse(ends[*group as usize + 1]));
        for group in 1..ends.len() {
            ends[group] += ends[group - 1];
        }
        let mut keys = vec![0u64; ranks.len()];
        let mut next = ends.clone();
        for &key in ranks.keys() {
            let place = &mut next[group_of(key, self.seed, self.shift)];
            keys[*place as usize] = key;
            *place += 1;
        }
        let mut overflown = 0;
        for group in order {
            let group = group as usize;
            let own = &keys[ends[group] as usize..ends[group + 1] as usize];
            let fits = own.len() <= MAX_GROUP
                && (0..OVERFLOWN).any(|displacement| {
                    self.displacements[group] = displacement;
                    self.occupy(own)
                });
            if !fits {
                self.displacements[group] = OVERFLOWN;
                overflown += 1;
            }
        }
        overflown
    }

    /// Occupies the slots of some keys, or none of them if one is taken.
    fn occupy(&mut self, keys: &[u64]) -> bool {
        for (count, key) in keys.iter().enumerate() {
            let (slot, _) = self.slot(*key);
            if self.slots[slot] != EMPTY {
                for key in &keys[..count] {
                    let (slot, _) = self.slot(*key);
                    self.slots[slot] = EMPTY;
                }
                return false;
            }
            self.slots[slot] = *key;
        }
        true
    }

    /// The slot of a pair, if it is in the map and its group has not overflown, and the displacement of its group.
    #[inline(always)]
    fn slot(&self, key: u64) -> (usize, u8) {
        let hash = key.wrapping_mul(self.seed);
        let displacement = self.displacements[(hash >> self.shift) as usize];
        let mixed = (hash ^ u64::from(displacement).wrapping_mul(0xa076_1d64_78bd_642f))
            .wrapping_mul(0xe703_7ed1_a0b4_28db);
        (((u128::from(mixed) * self.slots.len() as u128) >> 64) as usize, displacement)
    }

    /// The rank of a pair, or [`NEVER`].
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let wanted = super::merge::key(left, right);
        let (slot, displacement) = self.slot(wanted);
        if displacement == OVERFLOWN {
            return self.overflown(wanted);
        }
        let found = self.slots[slot];
        if found >> RANK_BITS == wanted { found as u32 & ((1 << RANK_BITS) - 1) } else { NEVER }
    }

    #[cold]
    fn overflown(&self, key: u64) -> u32 {
        self.overflow.get(&key).copied().unwrap_or(NEVER)
    }
}

fn ranks_of(pairs: &[Pair]) -> FxHashMap<u64, u32> {
    pairs.iter().map(|pair| (super::merge::key(pair.left, pair.right), pair.rank)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As many different pairs as asked for, of numbers that fit.
    fn generated(count: u32, seed: u64) -> Vec<Pair> {
        let mut state = seed;
        (0..count)
            .map(|rank| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // The right number makes the pairs differ, up to 2^20 of them.
                Pair { left: (state >> 44) as u32, right: rank, rank }
            })
            .collect()
    }

    fn check(pairs: &[Pair]) -> Pairs {
        let made = Pairs::new(pairs);
        for pair in pairs {
            assert_eq!(made.rank(pair.left, pair.right), pair.rank);
            assert_eq!(made.rank(pair.left ^ 1, pair.right), NEVER);
        }
        made
    }

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

    /// Sizes at which a table with an average of four pairs per group cannot be built with any seed, the number of merges of Gemma 3
    /// among them, and the largest averages of three.
    #[test]
    fn sizes_that_fill_their_groups_are_built_without_overflow() {
        for count in [262_143, 514_906, 524_287, 786_431, 1_000_000] {
            assert!(check(&generated(count, 1)).overflow.is_empty(), "{count}");
        }
    }

    #[test]
    fn pairs_of_crowded_groups_are_found_in_the_overflow_map() {
        let pairs = generated(30_000, 3);
        let made = Pairs::with_groups(&ranks_of(&pairs), 2);
        assert_eq!(made.overflow.len(), pairs.len());
        for pair in &pairs {
            assert_eq!(made.rank(pair.left, pair.right), pair.rank);
            assert_eq!(made.rank(pair.left ^ 1, pair.right), NEVER);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
        #[test]
        fn any_number_of_pairs_is_built(magnitude in 0.0f64..=20.0, seed in any::<u64>()) {
            check(&generated(magnitude.exp2().min(1_000_000.0) as u32, seed));
        }
    }
}
