//! The perfect hash of the BPE merges: a map from pairs of ids to their ranks in which every lookup, hit or miss, is one probe.
//!
//! Merging does dependent lookups that mostly miss, so it is bound by cache misses and branch mispredicts. This map has no probe
//! sequence, and its table is only slightly larger than its content.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use super::merge::{Pair, RANK_BITS};
use crate::vocabulary::ID_BITS;

/// Perfect-hash map from a pair to its rank. Each group of pairs has a displacement that maps its pairs to free slots.
///
/// Construction is bounded: groups for which no displacement works in any round are kept in `overflow`. With real and with random pairs
/// the first round succeeds, so that every lookup is one probe.
pub struct PairRanks {
    /// The displacement of each group; [`OVERFLOWED`] for a group whose pairs are in `overflow`.
    displacements: Box<[u8]>,
    /// Both ids and the rank in one word; [`EMPTY`] for an unused slot.
    slots: Box<[u64]>,
    /// The position of the bits of a hash that select the group.
    shift: u32,
    seed: u64,
    /// Hashed with random keys, because only adversarial definitions have many such pairs.
    overflow: HashMap<u64, u32>,
}

/// A lookup that [`PairRanks::probe`] has started: the slot.
#[derive(Debug, Clone, Copy, Default)]
pub struct Probe(u32);

/// A probe of the overflow map. There are fewer slots.
const IN_OVERFLOW: u32 = u32::MAX;

/// The rank of a pair that is not in the map: greater than every rank.
pub const NO_RANK: u32 = (1 << RANK_BITS) - 1;

/// A symbol that no merge has, for [`PairRanks::probe`].
pub const NO_SYMBOL: u32 = (1 << ID_BITS) - 1;

const EMPTY: u64 = u64::MAX;
/// The displacement that marks a group as kept in the overflow map.
const OVERFLOWED: u8 = u8::MAX;
/// The average number of pairs per group is between half of this and this. With 4, groups of the last sizes below a power of two find
/// no displacement among 255; with 3 all do.
const GROUP_SIZE: usize = 3;
/// Larger groups go to the overflow map without a search, which would almost always fail.
const MAX_GROUP: usize = 24;
/// Seeds that are tried before pairs go to the overflow map. Each round has more slots.
const MAX_ROUNDS: usize = 4;

impl PairRanks {
    /// Builds the map. A repeated pair has its last rank.
    pub fn new(pairs: &[Pair]) -> PairRanks {
        let ranks = ranks_of(pairs);
        PairRanks::with_groups(&ranks, (ranks.len() / GROUP_SIZE).next_power_of_two().max(2))
    }

    /// With this number of groups, a power of two.
    fn with_groups(ranks: &FxHashMap<u64, u32>, groups: usize) -> PairRanks {
        let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut round = 1;
        let mut map = loop {
            // A quarter more slots than pairs in the first round.
            let size = (ranks.len() + ranks.len() / 4 * round).max(16);
            let mut map = PairRanks {
                displacements: vec![0; groups].into_boxed_slice(),
                slots: vec![EMPTY; size].into_boxed_slice(),
                shift: 64 - groups.trailing_zeros(),
                seed,
                overflow: HashMap::new(),
            };
            if map.assign_displacements(ranks) == 0 || round == MAX_ROUNDS {
                break map;
            }
            seed = seed.wrapping_mul(0xd134_2543_de82_ef95) | 1;
            round += 1;
        };
        for (&key, &rank) in ranks {
            let (slot, displacement) = map.slot(key);
            if displacement == OVERFLOWED {
                map.overflow.insert(key, rank);
            } else {
                map.slots[slot] = key << RANK_BITS | u64::from(rank);
            }
        }
        map
    }

    /// Chooses the displacements, large groups first, and occupies the slots. Returns the number of groups that overflow.
    fn assign_displacements(&mut self, ranks: &FxHashMap<u64, u32>) -> usize {
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
            let index = &mut next[group_of(key, self.seed, self.shift)];
            keys[*index as usize] = key;
            *index += 1;
        }
        let mut overflowed = 0;
        for group in order {
            let group = group as usize;
            let own = &keys[ends[group] as usize..ends[group + 1] as usize];
            let fits = own.len() <= MAX_GROUP
                && (0..OVERFLOWED).any(|displacement| {
                    self.displacements[group] = displacement;
                    self.occupy(own)
                });
            if !fits {
                self.displacements[group] = OVERFLOWED;
                overflowed += 1;
            }
        }
        overflowed
    }

    /// Occupies the slots of all keys, or of none if one slot is taken.
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

    /// The slot that a pair maps to, and the displacement of its group.
    #[inline(always)]
    fn slot(&self, key: u64) -> (usize, u8) {
        let hash = key.wrapping_mul(self.seed);
        let displacement = self.displacements[(hash >> self.shift) as usize];
        let mixed = (hash ^ u64::from(displacement).wrapping_mul(0xa076_1d64_78bd_642f))
            .wrapping_mul(0xe703_7ed1_a0b4_28db);
        (((u128::from(mixed) * self.slots.len() as u128) >> 64) as usize, displacement)
    }

    /// The rank of a pair, or [`NO_RANK`].
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let (slot, displacement) = self.slot(super::merge::key(left, right));
        let slot = if displacement == OVERFLOWED { IN_OVERFLOW } else { slot as u32 };
        self.probed_rank(Probe(slot), left, right)
    }

    /// Starts a lookup: loads the slot of a pair into the cache. All pairs with [`NO_SYMBOL`] share one slot, to save cache misses.
    #[inline(always)]
    pub fn probe(&self, left: u32, right: u32) -> Probe {
        let is_absent = (left == NO_SYMBOL) | (right == NO_SYMBOL);
        let (slot, displacement) = self.slot(if is_absent { 0 } else { super::merge::key(left, right) });
        crate::memory::prefetch(&self.slots[slot]);
        Probe(if displacement == OVERFLOWED { IN_OVERFLOW } else { slot as u32 })
    }

    /// Ends a lookup of the same pair: its rank, or [`NO_RANK`].
    #[inline(always)]
    pub fn probed_rank(&self, Probe(slot): Probe, left: u32, right: u32) -> u32 {
        let expected = super::merge::key(left, right);
        if slot == IN_OVERFLOW {
            return self.overflowed(expected);
        }
        let found = self.slots[slot as usize];
        if found >> RANK_BITS == expected { found as u32 & ((1 << RANK_BITS) - 1) } else { NO_RANK }
    }

    #[cold]
    fn overflowed(&self, key: u64) -> u32 {
        self.overflow.get(&key).copied().unwrap_or(NO_RANK)
    }
}

fn ranks_of(pairs: &[Pair]) -> FxHashMap<u64, u32> {
    pairs.iter().map(|pair| (super::merge::key(pair.left, pair.right), pair.rank)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `count` distinct pairs.
    fn generated(count: u32, seed: u64) -> Vec<Pair> {
        let mut state = seed;
        (0..count)
            .map(|rank| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // The right id makes the pairs distinct.
                Pair { left: (state >> 44) as u32, right: rank, rank }
            })
            .collect()
    }

    fn check(pairs: &[Pair]) -> PairRanks {
        let map = PairRanks::new(pairs);
        for pair in pairs {
            assert_eq!(map.rank(pair.left, pair.right), pair.rank);
            assert_eq!(map.rank(pair.left ^ 1, pair.right), NO_RANK);
        }
        map
    }

    #[test]
    fn every_pair_is_found_and_no_other() {
        for count in [0, 1, 2, 5, 100, 20_000] {
            let pair = |rank: u32| Pair { left: rank * 7 % 1009, right: rank, rank };
            let mut pairs: Vec<Pair> = (0..count).map(pair).collect();
            // A repeated pair has its last rank.
            pairs.extend((0..count).step_by(3).map(|rank| Pair { rank: rank + 1_000_000, ..pair(rank) }));
            let map = PairRanks::new(&pairs);
            for rank in 0..count {
                let Pair { left, right, .. } = pair(rank);
                let expected = if rank % 3 == 0 { rank + 1_000_000 } else { rank };
                assert_eq!(map.rank(left, right), expected);
                assert_eq!(map.rank(left + 1, right), NO_RANK);
                assert_eq!(map.rank(left, right + count), NO_RANK);
            }
            assert_eq!(map.rank(0, count), NO_RANK);
        }
    }

    /// Sizes for which groups of four on average cannot be built with any seed (the number of merges of Gemma 3 among them), and the
    /// sizes with the largest groups at an average of three.
    #[test]
    fn sizes_that_fill_their_groups_are_built_without_overflow() {
        for count in [262_143, 514_906, 524_287, 786_431, 1_000_000] {
            assert!(check(&generated(count, 1)).overflow.is_empty(), "{count}");
        }
    }

    #[test]
    fn pairs_of_crowded_groups_are_found_in_the_overflow_map() {
        let pairs = generated(30_000, 3);
        let map = PairRanks::with_groups(&ranks_of(&pairs), 2);
        assert_eq!(map.overflow.len(), pairs.len());
        for pair in &pairs {
            assert_eq!(map.rank(pair.left, pair.right), pair.rank);
            assert_eq!(map.rank(pair.left ^ 1, pair.right), NO_RANK);
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
