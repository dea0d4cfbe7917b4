//! Decisions by cell: a table that only grows, read without a lock, thrown away whole.
//!
//! It belongs to one world. Entries are never changed or removed, so a reader that holds the world may hold an entry; the
//! bound is kept by the engine, which starts a new world when a table is full. Full keys are compared, never fingerprints.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::context::{Context, FLAG_WORDS, MAX_AXES};
use crate::engine::decide::Decision;
use crate::engine::table::OperationTable;
use crate::mode::Mode;

/// The cell of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellKey {
    slot: u32,
    mode: u32,
    flags: [u64; FLAG_WORDS],
    axes: [u32; MAX_AXES],
}

impl CellKey {
    /// `None` for a call that is not cached: an exact axis of more than 32 bits.
    #[inline]
    pub fn of(table: &OperationTable, context: &Context, mode: Mode) -> Option<CellKey> {
        let mut key = CellKey {
            slot: table.info.slot(),
            mode: mode.asks(),
            flags: [0; FLAG_WORDS],
            axes: [0; MAX_AXES],
        };
        for ((word, flags), mask) in key.flags.iter_mut().zip(context.flags).zip(table.mask) {
            *word = flags & mask;
        }
        for ((cell, cells), size) in key.axes.iter_mut().zip(&table.axes).zip(context.axes) {
            *cell = cells.cell(size)?;
        }
        Some(key)
    }

    /// Spreads the key over 64 bits, two words at a time.
    #[inline]
    pub fn hash(&self, axes: usize) -> u64 {
        let mut hash = u64::from(self.slot) << 32 | u64::from(self.mode);
        let (pairs, _) = self.flags.as_chunks::<2>();
        for [first, second] in pairs {
            hash = fold(hash ^ first, second ^ SPREAD);
        }
        let (groups, _) = self.axes.as_chunks::<4>();
        for [a, b, c, d] in groups.iter().take(axes.div_ceil(4)) {
            let first = u64::from(*a) << 32 | u64::from(*b);
            let second = u64::from(*c) << 32 | u64::from(*d);
            hash = fold(hash ^ first, second ^ SPREAD);
        }
        fold(hash, SPREAD)
    }
}

/// The fractional part of the golden ratio: odd, and without a pattern in its bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A product of 128 bits folded onto itself: every bit of the operands reaches every bit of the result.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ SPREAD.rotate_left(17)) * u128::from(b | 1);
    product as u64 ^ (product >> 64) as u64
}

/// One decision and its cell.
#[derive(Debug)]
pub(crate) struct Entry {
    pub key: CellKey,
    pub decision: Decision,
}

/// Decisions of one world.
#[derive(Debug)]
pub(crate) struct DecisionTable {
    slots: Box<[OnceLock<Box<Entry>>]>,
    room: usize,
    length: AtomicUsize,
    /// Whoever decides for a cell holds the lock that its hash falls on, so that one cell is decided once.
    deciding: [Mutex<()>; 16],
}

/// What became of an insertion.
#[derive(Debug)]
pub(crate) enum Inserted<'a> {
    /// It is there.
    Kept(&'a Entry),
    /// There is no room; the entry comes back.
    Full(Box<Entry>),
}

impl DecisionTable {
    /// With room for so many decisions.
    pub fn new(room: usize) -> DecisionTable {
        let slots = if room == 0 { 0 } else { (room + room / 2).next_power_of_two() };
        DecisionTable {
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
            room,
            length: AtomicUsize::new(0),
            deciding: std::array::from_fn(|_| Mutex::new(())),
        }
    }

    /// How many decisions there are.
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// How many there is room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The decision of a cell that stands. A cell has several when what they hang on cannot be cut.
    #[inline]
    pub fn get(&self, key: &CellKey, hash: u64, mut stands: impl FnMut(&Decision) -> bool) -> Option<&Entry> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = hash as usize & mask;
        // There is more space than room, so that every chain ends.
        while let Some(entry) = self.slots.get(place)?.get() {
            if entry.key == *key && stands(&entry.decision) {
                return Some(entry);
            }
            place = (place + 1) & mask;
        }
        None
    }

    /// Waits until nobody else decides for this cell.
    pub fn decide_alone(&self, hash: u64) -> MutexGuard<'_, ()> {
        let lock = &self.deciding[(hash >> 60) as usize % self.deciding.len()];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a decision. If somebody else was faster with the same one, theirs stays.
    pub fn insert(&self, mut entry: Box<Entry>, hash: u64) -> Inserted<'_> {
        if self.length.fetch_add(1, Ordering::Relaxed) >= self.room {
            self.length.fetch_sub(1, Ordering::Relaxed);
            return Inserted::Full(entry);
        }
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = hash as usize & mask;
        while let Some(slot) = self.slots.get(place) {
            match slot.get() {
                Some(there) if there.key == entry.key && there.decision.guards == entry.decision.guards => {
                    self.length.fetch_sub(1, Ordering::Relaxed);
                    return Inserted::Kept(there);
                }
                Some(_) => place = (place + 1) & mask,
                None => match slot.set(entry) {
                    Ok(()) => match slot.get() {
                        Some(there) => return Inserted::Kept(there),
                        None => unreachable!("it was set in the line above"),
                    },
                    Err(back) => entry = back,
                },
            }
        }
        Inserted::Full(entry)
    }
}
