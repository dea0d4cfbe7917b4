//! Decisions by cell: a table that only grows, read without a lock, thrown away whole.
//!
//! It belongs to one world. Entries are never changed or removed, so a reader that holds the world may hold an entry; the
//! bound is kept by the engine, which starts a new world when a table is full. Full keys are compared, never fingerprints.
//!
//! A call finds its decision in one of two ways. The short one leads from the call's exact sizes straight to an entry, which
//! is then held against the call; the long one works out the call's cell, and so finds what other calls of the cell left.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::context::{Context, FLAG_WORDS, MAX_AXES};
use crate::engine::decide::{Decision, Workspace};
use crate::engine::guard::Guard;
use crate::engine::table::OperationTable;
use crate::mode::Mode;
use crate::plan::Transforms;

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

/// The cells of words of pairs, one after the other.
#[inline(always)]
fn halves(pairs: &[u64]) -> &[u32] {
    // SAFETY: a word is two halves, is aligned as one, and every pattern of bits is a number.
    unsafe { std::slice::from_raw_parts(pairs.as_ptr().cast(), pairs.len() * 2) }
}

/// The first word of a key: what decisions are never shared between.
#[inline(always)]
pub(crate) fn head(slot: u32, mode: Mode) -> u64 {
    u64::from(slot) << 32 | u64::from(mode.asks())
}

/// A number for a call, by all that a cell depends on: every word times a factor of its own, so that none waits for another.
#[inline(always)]
pub(crate) fn hash_call(head: u64, context: &Context) -> u64 {
    hash_words(head, context.sized())
}

/// The same of any words.
#[inline(always)]
pub(crate) fn hash_words(head: u64, words: &[u64]) -> u64 {
    let mut sum = head;
    for (word, factor) in words.iter().zip(&FACTORS) {
        sum = sum.wrapping_add(word.wrapping_mul(*factor));
    }
    fold(sum, SPREAD)
}

/// Odd numbers without a pattern.
const FACTORS: [u64; FLAG_WORDS + MAX_AXES] = {
    let mut factors = [SPREAD; FLAG_WORDS + MAX_AXES];
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

    /// Whether a call lies in its cell. Sizes are held against where the cell begins and ends, which is cheaper than to find
    /// out in which cell they lie. Not compiled into its caller, which has too much else to keep at hand.
    #[inline(never)]
    fn covers(&self, head: u64, table: &OperationTable, context: &Context) -> bool {
        let flags = context.flags();
        let Some((first, rest)) = self.words.split_first() else { return false };
        let Some((known, cells)) = rest.split_at_checked(flags.len()) else { return false };
        let mut difference = first ^ head;
        for ((known, flags), mask) in known.iter().zip(flags).zip(&table.mask) {
            difference |= known ^ (flags & mask);
        }
        difference == 0 && table.grid.covers(halves(cells), context.axes())
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

/// Decisions of one world.
#[derive(Debug)]
pub(crate) struct DecisionTable {
    slots: Box<[OnceLock<Entry>]>,
    /// By the numbers of calls, two places each, one more than the place of a slot; 0 for none. The first call that comes keeps
    /// a place: taking turns would make every hit a write.
    short_ways: Box<[AtomicU32]>,
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
            short_ways: (0..slots).map(|_| AtomicU32::new(0)).collect(),
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

    /// The decision that the number of a call leads to, if it is the call's own. What it hangs on is still to be looked at.
    #[inline(always)]
    pub fn get_short(
        &self,
        call: u64,
        head: u64,
        table: &OperationTable,
        context: &Context,
    ) -> Option<&Entry> {
        for way in self.short_ways(call).into_iter().flatten() {
            let way = way.load(Ordering::Relaxed) as usize;
            if let Some(entry) = self.slots.get(way.wrapping_sub(1)).and_then(OnceLock::get)
                && entry.covers(head, table, context)
            {
                return Some(entry);
            }
        }
        None
    }

    /// The decision of a call's cell that stands, and from now on also by the number of the call.
    #[inline(never)]
    pub fn get_long(
        &self,
        call: u64,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
        stands: impl FnMut(&Entry) -> bool,
    ) -> Option<&Entry> {
        let mut key = CellKey::EMPTY;
        if !key.fill(table, context, mode) {
            return None;
        }
        let (place, entry) = self.find(&key, stands)?;
        let free = self.short_ways(call).into_iter().flatten().find(|way| way.load(Ordering::Relaxed) == 0);
        if let Some(way) = free {
            way.store(u32::try_from(place + 1).unwrap_or(0), Ordering::Relaxed);
        }
        Some(entry)
    }

    /// The two places where the number of a call is looked up.
    #[inline(always)]
    fn short_ways(&self, call: u64) -> [Option<&AtomicU32>; 2] {
        let mask = self.short_ways.len().wrapping_sub(1);
        [call, call >> 32].map(|number| self.short_ways.get(number as usize & mask))
    }

    /// The decision of a cell that stands.
    pub fn get(&self, key: &CellKey, stands: impl FnMut(&Entry) -> bool) -> Option<&Entry> {
        self.find(key, stands).map(|(_, entry)| entry)
    }

    /// The decision of a cell that stands, and its place. A cell has several when what they hang on cannot be cut.
    #[inline]
    fn find(&self, key: &CellKey, mut stands: impl FnMut(&Entry) -> bool) -> Option<(usize, &Entry)> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = key.hash as usize & mask;
        while let Some(entry) = self.slots.get(place)?.get() {
            if entry.is_of(key) && (!entry.is_guarded() || stands(entry)) {
                return Some((place, entry));
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
