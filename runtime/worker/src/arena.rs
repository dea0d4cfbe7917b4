//! The arena: shared memory for tensors, allocated in blocks by the host. The free list is in the host's private memory.
//!
//! The mapping has the maximum size of the arena. Pages are committed when first touched, so growing costs only the pages. Above the
//! retained part, the pages of a block are returned to the system when the block is released.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use lz_core::tensor::Layout;

use crate::fork;
use crate::memory::SharedMemory;
use crate::wait::{WaitDeadline, WaitError};

/// Alignment of blocks.
pub const ALIGNMENT: usize = 64;

/// An allocator over shared memory. Free ranges of offsets are sorted and coalesced.
#[derive(Debug)]
pub struct Arena {
    memory: SharedMemory,
    /// Pages below this offset stay committed when their block is released.
    retained: usize,
    generation: u64,
    free: Mutex<Vec<(usize, usize)>>,
    freed: Condvar,
}

/// A tensor in the arena.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArenaTensor {
    /// Offset of the element at index 0 in the shared memory.
    pub offset: u64,
    /// Shape, strides and dtype.
    pub layout: Layout,
}

/// A range of bytes in the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Start offset.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Why no block was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocationError {
    /// The block is larger than the arena.
    TooLarge,
    /// The wait for memory of other calls ended.
    Wait(WaitError),
}

impl Arena {
    /// Creates an arena of up to `limit` bytes, of which `retained` stay committed after use. If the address space is not available, the
    /// limit is halved, down to `retained`.
    pub fn create(retained: usize, limit: usize) -> io::Result<Arena> {
        let mut size = limit.max(retained);
        let memory = loop {
            match SharedMemory::create(size) {
                Err(error) if size <= retained => return Err(error),
                Err(_) => size = (size / 2).max(retained),
                Ok(memory) => break memory,
            }
        };
        let end = memory.size() - memory.size() % ALIGNMENT;
        Ok(Arena {
            memory,
            retained,
            generation: fork::generation(),
            free: Mutex::new(vec![(0, end)]),
            freed: Condvar::new(),
        })
    }

    /// The shared memory.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn free(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a block without waiting. Returns its offset; `None` if there is not enough contiguous memory now.
    pub fn take(&self, bytes: usize) -> Option<usize> {
        take(&mut self.free(), rounded(bytes)?)
    }

    /// Allocates a block, waiting for other calls to release memory. Returns its offset.
    pub(crate) fn wait_for(&self, bytes: usize, mut wait: WaitDeadline) -> Result<usize, AllocationError> {
        let bytes =
            rounded(bytes).filter(|bytes| *bytes <= self.memory.size()).ok_or(AllocationError::TooLarge)?;
        let mut free = self.free();
        loop {
            if let Some(offset) = take(&mut free, bytes) {
                return Ok(offset);
            }
            drop(free);
            // Without the lock: the interrupt check may run code of the caller.
            let slice = wait.slice().map_err(AllocationError::Wait)?;
            free = self.free();
            if free.iter().all(|(start, end)| end - start < bytes) {
                free = self.freed.wait_timeout(free, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Releases a block.
    pub fn release(&self, offset: usize, bytes: usize) {
        // In a forked child the block belongs to the parent, and the lock may be held by a thread that does not exist here.
        if self.generation != fork::generation() {
            return;
        }
        let Some(bytes) = rounded(bytes) else { return };
        let above = offset.max(self.retained);
        self.memory.release(above, (offset + bytes).saturating_sub(above));
        let mut free = self.free();
        let at = free.partition_point(|(start, _)| *start < offset);
        free.insert(at, (offset, offset + bytes));
        // Coalesce with both neighbors.
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

    /// Free bytes.
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

/// The block size for a number of bytes.
pub(crate) fn rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn released_blocks_are_coalesced() {
        let arena = Arena::create(4096, 4096).unwrap();
        let whole = arena.free_bytes();
        let blocks: Vec<usize> = (1..9).filter_map(|size| arena.take(size * 50)).collect();
        assert_eq!(blocks.len(), 8);
        assert!(blocks.iter().all(|block| block.is_multiple_of(ALIGNMENT)));
        assert_eq!(arena.take(1 << 20), None);
        for at in [3, 0, 7, 1, 5, 2, 6, 4] {
            arena.release(blocks[at], (at + 1) * 50);
        }
        assert_eq!(arena.free_bytes(), whole);
        assert_eq!(arena.take(whole), Some(blocks[0]), "one range again");
    }

    #[test]
    fn pages_above_the_retained_part_are_returned_to_the_system() {
        let arena = Arena::create(4096, 1 << 20).unwrap();
        let block = arena.take(1 << 20).unwrap();
        let first = arena.memory().at(0, 1 << 20).unwrap();
        // SAFETY: our block.
        unsafe { std::ptr::write_bytes(first, 7, 1 << 20) };
        arena.release(block, 1 << 20);
        // SAFETY: inside the memory.
        let (retained, released) = unsafe { (*first, *first.add(1 << 19)) };
        assert_eq!((retained, released), (7, 0));
    }

    #[test]
    fn waiting_for_memory_ends_at_the_deadline_or_on_release() {
        let arena = Arena::create(4096, 4096).unwrap();
        let block = arena.take(4096).unwrap();
        let wait = || WaitDeadline::new(Duration::from_millis(1));
        assert_eq!(arena.wait_for(4097, wait()), Err(AllocationError::TooLarge));
        assert_eq!(arena.wait_for(64, wait()), Err(AllocationError::Wait(WaitError::Expired)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| arena.wait_for(64, WaitDeadline::new(Duration::from_secs(60))));
            arena.release(block, 4096);
            assert_eq!(waiting.join().unwrap(), Ok(0));
        });
    }
}
