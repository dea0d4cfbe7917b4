//! An insert-only hash table with open addressing, read without a lock.
//!
//! Entries are never changed or removed, so references to them live as long as the table. This file is model-checked unmodified
//! (`tests/suite/cache_model.rs`), so it imports its primitives through `super::sync`.

use super::sync::{AtomicUsize, OnceLock, Ordering};

/// A table with a fixed number of entries.
#[derive(Debug)]
pub(crate) struct SlotTable<E> {
    slots: Box<[OnceLock<E>]>,
    capacity: usize,
    length: AtomicUsize,
}

impl<E> SlotTable<E> {
    /// A table with this capacity.
    pub fn new(capacity: usize) -> SlotTable<E> {
        // Load factor 3/4: probe sequences are short and end at a free slot.
        let slots = if capacity == 0 { 0 } else { (capacity * 4).div_ceil(3).next_power_of_two() };
        SlotTable {
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
            capacity,
            length: AtomicUsize::new(0),
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Number of entries. An insert that finds the table full is counted briefly.
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed).min(self.capacity)
    }

    /// Maximum number of entries.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The first entry of a hash's probe sequence that matches.
    #[inline]
    pub fn find(&self, hash: u64, mut matches: impl FnMut(&E) -> bool) -> Option<&E> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut index = hash as usize & mask;
        while let Some(entry) = self.slots.get(index)?.get() {
            if matches(entry) {
                return Some(entry);
            }
            index = (index + 1) & mask;
        }
        None
    }

    /// Inserts an entry; `None` if the table is full. If another thread inserted the same one first, that is returned.
    pub fn insert(&self, hash: u64, make: impl FnOnce() -> E, same: impl Fn(&E, &E) -> bool) -> Option<&E> {
        if self.length.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.length.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut entry = make();
        let mask = self.slots.len().wrapping_sub(1);
        let mut index = hash as usize & mask;
        while let Some(slot) = self.slots.get(index) {
            match slot.get() {
                Some(there) if same(there, &entry) => {
                    self.length.fetch_sub(1, Ordering::Relaxed);
                    return Some(there);
                }
                Some(_) => index = (index + 1) & mask,
                None => match slot.set(entry) {
                    Ok(()) => return slot.get(),
                    Err(back) => entry = back,
                },
            }
        }
        None
    }
}
