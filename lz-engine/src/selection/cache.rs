//! The decision cache: an insert-only hash table keyed by cell, read without a lock, invalidated as a whole.
//!
//! It belongs to one snapshot. Entries are never changed or removed, so references to them live as long as the snapshot; when a
//! table is full, the engine publishes a snapshot with a new one. Full keys are compared, not only hashes.
//!
//! The [exact cache](ExactCache) in front of it is keyed by the words of a call. A miss there is looked up by cell and can hit a
//! decision made for another call of the cell.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::selection::decide::{Decision, Workspace};
use crate::selection::exact_cache::ExactCache;
use crate::selection::guard::Guard;
use crate::selection::operation_table::OperationTable;
use crate::selection::slot_table::SlotTable;
use lz_core::context::{Context, FLAG_WORDS, MAX_AXES, MAX_WORDS};
use lz_core::fork;
use lz_core::mode::Mode;
use lz_core::plan::Transforms;

/// Maximum number of key words: operation and mode, flags, two axes per word.
const KEY_WORDS: usize = 1 + FLAG_WORDS + MAX_AXES / 2;

/// The cache key: the cell of a call.
#[derive(Debug)]
pub(crate) struct CellKey {
    words: [u64; KEY_WORDS],
    length: usize,
    pub hash: u64,
}

impl CellKey {
    /// An empty key.
    pub const EMPTY: CellKey = CellKey { words: [0; KEY_WORDS], length: 0, hash: 0 };

    /// Computes the key of a call. Returns false for a call that is not cacheable: an exact axis above 32 bits.
    #[inline(always)]
    pub fn fill(&mut self, table: &OperationTable, context: &Context, mode: Mode) -> bool {
        let (mut free, mut hash, mut length) = (self.words.iter_mut(), 0u64, 0);
        let mut push = |word: u64| {
            if let Some(free) = free.next() {
                *free = word;
                hash = (u64::rotate_left(hash, 23) ^ word).wrapping_mul(SPREAD);
                length += 1;
            }
        };
        push(head(table.info.slot(), mode));
        for (flags, mask) in context.flags().iter().zip(&table.mask) {
            push(flags & mask);
        }
        let mut axes = table.axes.iter().zip(context.axes());
        while let Some((cells, size)) = axes.next() {
            let Some(first) = cells.cell(*size as i64) else { return false };
            let second = axes.next().map_or(Some(0), |(cells, size)| cells.cell(*size as i64));
            let Some(second) = second else { return false };
            push(pair(first, second));
        }
        (self.hash, self.length) = (fold(hash, SPREAD), length);
        true
    }

    fn words(&self) -> &[u64] {
        self.words.get(..self.length).unwrap_or_default()
    }
}

/// Two cell indices in one word, in memory order.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The first key word: operation and mode.
#[inline(always)]
pub(crate) fn head(slot: u32, mode: Mode) -> u64 {
    u64::from(slot) << 32 | u64::from(mode.flags())
}

/// The hash of a call, from the first key word and [`hash_words`] of its words.
#[inline(always)]
pub(crate) fn number(head: u64, weight: u64) -> u64 {
    fold(head.wrapping_add(weight), SPREAD)
}

/// A multiply-add hash with an independent factor per word, so that the multiplications can overlap.
#[inline(always)]
pub(crate) fn hash_words(words: &[u64]) -> u64 {
    let weighed = words.iter().zip(&FACTORS).map(|(word, factor)| word.wrapping_mul(*factor));
    weighed.fold(0, u64::wrapping_add)
}

/// Odd pseudo-random factors.
const FACTORS: [u64; MAX_WORDS] = {
    let mut factors = [SPREAD; MAX_WORDS];
    let mut position = 1;
    while position < factors.len() {
        factors[position] = factors[position - 1].wrapping_mul(SPREAD).rotate_left(29) | 1;
        position += 1;
    }
    factors
};

/// 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes a text.
pub(crate) fn hash_text(text: &str) -> u64 {
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    // An overlapping load of the last eight bytes is faster than a byte loop.
    let tail = match text.as_bytes().last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(0, |tail, byte| tail << 8 | u64::from(*byte)),
    };
    let hash =
        words.iter().fold(text.len() as u64, |hash, word| fold(hash ^ u64::from_le_bytes(*word), SPREAD));
    fold(hash ^ tail, SPREAD)
}

/// Folded 128-bit multiplication: every input bit affects every output bit.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ SPREAD.rotate_left(17)) * u128::from(b | 1);
    product as u64 ^ (product >> 64) as u64
}

/// A decision and its key, packed.
#[derive(Debug)]
pub(crate) struct Entry {
    pub hash: u64,
    /// The key's words, then one word per guard.
    words: Box<[u64]>,
    pub workspace: Workspace,
    pub kernel: u32,
    pub transforms: Transforms,
    key_words: u8,
}

impl Entry {
    /// A decision for a cell.
    pub fn new(key: &CellKey, decision: &Decision) -> Entry {
        let guards = decision.guards.iter().map(|guard| guard.pack());
        Entry {
            hash: key.hash,
            words: key.words().iter().copied().chain(guards).collect(),
            workspace: decision.workspace,
            kernel: decision.kernel,
            transforms: decision.transforms,
            key_words: key.length as u8,
        }
    }

    /// Compares word by word: a wide load would stall on store forwarding, because the key has just been written.
    #[inline]
    fn matches(&self, key: &CellKey) -> bool {
        self.hash == key.hash
            && usize::from(self.key_words) == key.length
            && self.words.iter().zip(key.words()).all(|(known, word)| known == word)
    }

    /// Whether guards must be checked on each hit.
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.words.len() != usize::from(self.key_words)
    }

    /// The guards, checked on each hit.
    #[inline]
    pub fn guards(&self) -> impl Iterator<Item = Guard> {
        self.words.iter().skip(usize::from(self.key_words)).map(|word| Guard::unpack(*word))
    }
}

/// Size of the exact cache: one slot per this many decision slots, but at least `MIN_EXACT_SLOTS`. It is the fastest to look up,
/// and an entry takes as much memory as a decision.
const SLOTS_PER_EXACT_SLOT: usize = 8;
const MIN_EXACT_SLOTS: usize = 256;

/// The decision cache of one snapshot.
#[derive(Debug)]
pub(crate) struct DecisionCache {
    cells: SlotTable<Entry>,
    /// Decisions by exact call.
    pub exact: ExactCache,
    /// Striped locks, so that concurrent misses of a cell make one decision.
    deciding: [Mutex<()>; 16],
}

impl DecisionCache {
    /// A cache with this capacity.
    pub fn new(capacity: usize) -> DecisionCache {
        let cells = SlotTable::new(capacity);
        let exact =
            if capacity == 0 { 0 } else { (cells.slots() / SLOTS_PER_EXACT_SLOT).max(MIN_EXACT_SLOTS) };
        DecisionCache {
            cells,
            exact: ExactCache::new(exact),
            deciding: std::array::from_fn(|_| Mutex::new(())),
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Maximum number of entries.
    pub fn capacity(&self) -> usize {
        self.cells.capacity()
    }

    /// The entry of a cell whose guards hold. A cell has several entries if their guards differ.
    #[inline]
    pub fn get(&self, key: &CellKey, mut guards_hold: impl FnMut(&Entry) -> bool) -> Option<&Entry> {
        self.cells.find(key.hash, |entry| entry.matches(key) && (!entry.is_guarded() || guards_hold(entry)))
    }

    /// Locks the cell's stripe, so that only one thread decides for it. `None` in a forked child in which the lock may be locked
    /// forever; a decision that is made twice is stored once.
    pub fn decide_alone(&self, key: &CellKey) -> Option<(MutexGuard<'_, ()>, fork::Inside)> {
        let inside = fork::ENGINE.enter()?;
        let lock = &self.deciding[(key.hash >> 60) as usize % self.deciding.len()];
        Some((lock.lock().unwrap_or_else(PoisonError::into_inner), inside))
    }

    /// Inserts a decision; `None` if the cache is full. If another thread inserted the same one first, that is returned.
    pub fn insert(&self, key: &CellKey, decision: &Decision) -> Option<&Entry> {
        let same = |there: &Entry, entry: &Entry| there.hash == entry.hash && there.words == entry.words;
        self.cells.insert(key.hash, || Entry::new(key, decision), same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cache of whole calls is sized by it.
    #[test]
    fn a_table_has_a_third_more_slots_than_entries() {
        let slots = |capacity| SlotTable::<u8>::new(capacity).slots();
        assert_eq!([slots(0), slots(1), slots(3), slots(4), slots(48), slots(49)], [0, 2, 4, 8, 64, 128]);
    }

    /// Calls whose hashes are equal by chance have different words, or a different number of them.
    #[test]
    fn an_entry_matches_only_its_own_words() {
        let key = |words: &[u64], hash| {
            let mut key = CellKey { length: words.len(), hash, ..CellKey::EMPTY };
            key.words.iter_mut().zip(words).for_each(|(to, word)| *to = *word);
            key
        };
        let decision = Decision {
            kernel: 0,
            position: 0,
            transforms: Transforms::NONE,
            workspace: Workspace::fixed(0),
            guards: [].into(),
        };
        let entry = Entry::new(&key(&[1, 2], 7), &decision);
        assert!(entry.matches(&key(&[1, 2], 7)) && !entry.is_guarded());
        for other in [key(&[1, 2], 8), key(&[1, 3], 7), key(&[1], 7), key(&[1, 2, 0], 7), key(&[3], 7)] {
            assert!(!entry.matches(&other), "{:?}", other.words());
        }
    }
}
