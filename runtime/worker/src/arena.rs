//! The shared memory that tensors lie in: blocks that the host hands out and takes back. What is free is known to the host
//! alone, in memory of its own.
//!
//! The mapping is as large as the arena may become. Pages get memory when they are first touched, so growing costs nothing but
//! the pages; above the part that is kept, a block's pages go back to the system with the block.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::fork;
use crate::memory::SharedMemory;
use crate::patience::{Patience, Stop};

/// Every block begins at a multiple of this.
pub const ALIGNMENT: usize = 64;

/// Free ranges of offsets, in order, none touching the next.
#[derive(Debug)]
pub struct Arena {
    memory: SharedMemory,
    /// Below this offset pages stay when their block is given back.
    kept: usize,
    generation: u64,
    free: Mutex<Vec<(usize, usize)>>,
    freed: Condvar,
}

/// Why there is no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBlock {
    /// The whole arena is smaller.
    TooLarge,
    /// Other calls have the room.
    Stopped(Stop),
}

impl Arena {
    /// New memory of up to `limit` bytes, of which `kept` stay once they were used. Where so much address space is not to be
    /// had, the limit is lower, down to `kept`.
    pub fn create(kept: usize, limit: usize) -> io::Result<Arena> {
        let mut size = limit.max(kept);
        let memory = loop {
            match SharedMemory::create(size) {
                Err(error) if size <= kept => return Err(error),
                Err(_) => size = (size / 2).max(kept),
                Ok(memory) => break memory,
            }
        };
        let end = memory.size() - memory.size() % ALIGNMENT;
        Ok(Arena {
            memory,
            kept,
            generation: fork::generation(),
            free: Mutex::new(vec![(0, end)]),
            freed: Condvar::new(),
        })
    }

    /// The memory.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn free(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offset of a block; `None` if there is no room now.
    pub fn take(&self, bytes: usize) -> Option<usize> {
        take(&mut self.free(), rounded(bytes)?)
    }

    /// The offset of a block, once other calls have given back enough.
    pub(crate) fn wait_for(&self, bytes: usize, mut patience: Patience) -> Result<usize, NoBlock> {
        let bytes = rounded(bytes).filter(|bytes| *bytes <= self.memory.size()).ok_or(NoBlock::TooLarge)?;
        let mut free = self.free();
        loop {
            if let Some(offset) = take(&mut free, bytes) {
                return Ok(offset);
            }
            drop(free);
            // Without the lock: asking for interrupts may run code of the caller.
            let slice = patience.slice().map_err(NoBlock::Stopped)?;
            free = self.free();
            if free.iter().all(|(start, end)| end - start < bytes) {
                free = self.freed.wait_timeout(free, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Takes a block back.
    pub fn give_back(&self, offset: usize, bytes: usize) {
        // In a forked child the block is the parent's, and the lock may be held by a thread that does not exist here.
        if self.generation != fork::generation() {
            return;
        }
        let Some(bytes) = rounded(bytes) else { return };
        let above = offset.max(self.kept);
        self.memory.release(above, (offset + bytes).saturating_sub(above));
        let mut free = self.free();
        let at = free.partition_point(|(start, _)| *start < offset);
        free.insert(at, (offset, offset + bytes));
        // Join what touches, on both sides.
        for at in [at, at.wrapping_sub(1)] {
            if let (Some(&(start, end)), Some(&(next, last))) = (free.get(at), free.get(at.wrapping_add(1)))
                && end == next
            {
                free[at] = (start, last);
                free.remove(at + 1);
            }
        }
        drop(free);
        self.freed.notify_all();
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> usize {
        self.free().iter().map(|(start, end)| end - start).sum()
    }
}

fn take(free: &mut Vec<(usize, usize)>, bytes: usize) -> Option<usize> {
    let at = free.iter().position(|(start, end)| end - start >= bytes)?;
    let (start, end) = free[at];
    if end - start == bytes {
        free.remove(at);
    } else {
        free[at].0 = start + bytes;
    }
    Some(start)
}

/// The size of the block for so many bytes.
pub(crate) fn rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn blocks_come_back_whole() {
        let arena = Arena::create(4096, 4096).unwrap();
        let whole = arena.free_bytes();
        let blocks: Vec<usize> = (1..9).filter_map(|size| arena.take(size * 50)).collect();
        assert_eq!(blocks.len(), 8);
        assert!(blocks.iter().all(|block| block.is_multiple_of(ALIGNMENT)));
        assert_eq!(arena.take(1 << 20), None);
        for at in [3, 0, 7, 1, 5, 2, 6, 4] {
            arena.give_back(blocks[at], (at + 1) * 50);
        }
        assert_eq!(arena.free_bytes(), whole);
        assert_eq!(arena.take(whole), Some(blocks[0]), "one range again");
    }

    #[test]
    fn pages_above_the_kept_part_go_back_to_the_system() {
        let arena = Arena::create(4096, 1 << 20).unwrap();
        let block = arena.take(1 << 20).unwrap();
        let first = arena.memory().at(0, 1 << 20).unwrap();
        // SAFETY: our block.
        unsafe { std::ptr::write_bytes(first, 7, 1 << 20) };
        arena.give_back(block, 1 << 20);
        // SAFETY: inside the memory.
        let (kept, released) = unsafe { (*first, *first.add(1 << 19)) };
        assert_eq!((kept, released), (7, 0));
    }

    #[test]
    fn a_wait_for_room_ends() {
        let arena = Arena::create(4096, 4096).unwrap();
        let block = arena.take(4096).unwrap();
        let patience = || Patience::new(Duration::from_millis(1));
        assert_eq!(arena.wait_for(4097, patience()), Err(NoBlock::TooLarge));
        assert_eq!(arena.wait_for(64, patience()), Err(NoBlock::Stopped(Stop::Expired)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| arena.wait_for(64, Patience::new(Duration::from_secs(60))));
            arena.give_back(block, 4096);
            assert_eq!(waiting.join().unwrap(), Ok(0));
        });
    }
}
