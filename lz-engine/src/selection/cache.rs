//! Decisions by cell: a table that only grows, read without a lock, thrown away whole.
//!
//! It belongs to one world. Entries are never changed or removed, so a reader that holds the world may hold an entry; the
//! bound is kept by the engine, which starts a new world when a table is full. Full keys are compared, never fingerprints.
//!
//! A call that is [known](KnownCalls) finds its decision by its own words; every other by its cell, and so what other calls of
//! the cell left.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::selection::decide::{Decision, Workspace};
use crate::selection::exact_cache::KnownCalls;
use crate::selection::guard::Guard;
use crate::selection::operation_table::OperationTable;
use lz_core::context::{Context, FLAG_WORDS, MAX_AXES, MAX_WORDS};
use lz_core::mode::Mode;
use lz_core::plan::Transforms;

/// The most words that a key can have: operation and mode, flags, two axes a word.
const KEY_WORDS: usize = 1 + FLAG_WORDS + MAX_AXES / 2;

/// The cell of a call.
#[derive(Debug)]
pub(crate) struct CellKey {
    words: [u64; KEY_WORDS],
    length: usize,
    pub hash: u64,
}

impl CellKey {
    /// Of no call yet.
    pub const EMPTY: CellKey = CellKey { words: [0; KEY_WORDS], length: 0, hash: 0 };

    /// Works out the cell of a call. False for a call that is not cached: an exact axis of more than 32 bits.
    #[inline(always)]
    pub fn fill(&mut self, table: &OperationTable, context: &Context, mode: Mode) -> bool {
        let (mut places, mut hash, mut length) = (self.words.iter_mut(), 0u64, 0);
        let mut push = |word: u64| {
            if let Some(place) = places.next() {
                *place = word;
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

/// Two cells as one word, whose halves lie in memory in this order.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The first word of a key: what decisions are never shared between.
#[inline(always)]
pub(crate) fn head(slot: u32, mode: Mode) -> u64 {
    u64::from(slot) << 32 | u64::from(mode.asks())
}

/// A number for a call, by the first word of its key and the weight of its words.
#[inline(always)]
pub(crate) fn number(head: u64, weight: u64) -> u64 {
    fold(head.wrapping_add(weight), SPREAD)
}

/// The sum of words, each times a factor of its own, so that none waits for another.
#[inline(always)]
pub(crate) fn weigh(words: &[u64]) -> u64 {
    let weighed = words.iter().zip(&FACTORS).map(|(word, factor)| word.wrapping_mul(*factor));
    weighed.fold(0, u64::wrapping_add)
}

/// Odd numbers without a pattern.
const FACTORS: [u64; MAX_WORDS] = {
    let mut factors = [SPREAD; MAX_WORDS];
    let mut position = 1;
    while position < factors.len() {
        factors[position] = factors[position - 1].wrapping_mul(SPREAD).rotate_left(29) | 1;
        position += 1;
    }
    factors
};

/// The fractional part of the golden ratio: odd, and without a pattern in its bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a text over 64 bits.
pub(crate) fn hash_text(text: &str) -> u64 {
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    // The last eight bytes, some of them once more, are quicker than the rest byte by byte.
    let tail = match text.as_bytes().last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(0, |tail, byte| tail << 8 | u64::from(*byte)),
    };
    let hash =
        words.iter().fold(text.len() as u64, |hash, word| fold(hash ^ u64::from_le_bytes(*word), SPREAD));
    fold(hash ^ tail, SPREAD)
}

/// A product of 128 bits folded onto itself: every bit of the operands reaches every bit of the result.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ SPREAD.rotate_left(17)) * u128::from(b | 1);
    product as u64 ^ (product >> 64) as u64
}

/// One decision and its cell, as small as it can be.
#[derive(Debug)]
pub(crate) struct Entry {
    pub hash: u64,
    /// The key's words, then one word a guard.
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

    /// Word by word, because a wide comparison would have to wait for the stores that have just made the key.
    #[inline]
    fn is_of(&self, key: &CellKey) -> bool {
        self.hash == key.hash
            && usize::from(self.key_words) == key.length
            && self.words.iter().zip(key.words()).all(|(known, word)| known == word)
    }

    /// Whether there is something to look at on each hit.
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.words.len() != usize::from(self.key_words)
    }

    /// What must be looked at on each hit.
    #[inline]
    pub fn guards(&self) -> impl Iterator<Item = Guard> {
        self.words.iter().skip(usize::from(self.key_words)).map(|word| Guard::unpack(*word))
    }
}

/// One call in so many places of decisions is known, but no fewer calls than these: they are the quickest to find, and each
/// takes as much memory as a decision.
const KNOWN_SHARE: usize = 8;
const LEAST_KNOWN: usize = 256;

/// Decisions of one world.
#[derive(Debug)]
pub(crate) struct DecisionTable {
    slots: Box<[OnceLock<Entry>]>,
    /// Calls that need not go by their cells.
    pub known: KnownCalls,
    room: usize,
    length: AtomicUsize,
    /// Whoever decides for a cell holds the lock that its hash falls on, so that one cell is decided once.
    deciding: [Mutex<()>; 16],
}

impl DecisionTable {
    /// With room for so many decisions.
    pub fn new(room: usize) -> DecisionTable {
        // A quarter stays free, so that chains are short and every one of them ends.
        let slots = if room == 0 { 0 } else { (room * 4).div_ceil(3).next_power_of_two() };
        DecisionTable {
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
            known: KnownCalls::new(if room == 0 { 0 } else { (slots / KNOWN_SHARE).max(LEAST_KNOWN) }),
            room,
            length: AtomicUsize::new(0),
            deciding: std::array::from_fn(|_| Mutex::new(())),
        }
    }

    /// How many decisions there are. One that finds no room is counted for the moment in which it looks.
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed).min(self.room)
    }

    /// How many there is room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The decision of a cell that stands. A cell has several when what they hang on cannot be cut.
    #[inline]
    pub fn get(&self, key: &CellKey, mut stands: impl FnMut(&Entry) -> bool) -> Option<&Entry> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = key.hash as usize & mask;
        while let Some(entry) = self.slots.get(place)?.get() {
            if entry.is_of(key) && (!entry.is_guarded() || stands(entry)) {
                return Some(entry);
            }
            place = (place + 1) & mask;
        }
        None
    }

    /// Waits until nobody else decides for this cell.
    pub fn decide_alone(&self, key: &CellKey) -> MutexGuard<'_, ()> {
        let lock = &self.deciding[(key.hash >> 60) as usize % self.deciding.len()];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a decision; `None` when there is no room. If somebody else was faster with the same one, theirs stays.
    pub fn insert(&self, key: &CellKey, decision: &Decision) -> Option<&Entry> {
        if self.length.fetch_add(1, Ordering::Relaxed) >= self.room {
            self.length.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut entry = Entry::new(key, decision);
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = key.hash as usize & mask;
        while let Some(slot) = self.slots.get(place) {
            match slot.get() {
                Some(there) if there.hash == entry.hash && there.words == entry.words => {
                    self.length.fetch_sub(1, Ordering::Relaxed);
                    return Some(there);
                }
                Some(_) => place = (place + 1) & mask,
                None => match slot.set(entry) {
                    Ok(()) => return slot.get(),
                    Err(back) => entry = back,
                },
            }
        }
        None
    }
}
