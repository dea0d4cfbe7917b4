//! The part of the shared memory that tensors lie in: blocks handed out and given back by the host.

use std::sync::{Mutex, PoisonError};

/// Every block begins at a multiple of this.
pub const ALIGNMENT: usize = 64;

/// Free ranges of offsets, in order, none touching the next.
#[derive(Debug)]
pub struct Arena {
    free: Mutex<Vec<(usize, usize)>>,
}

impl Arena {
    /// Over the whole blocks of `start..end`.
    pub fn new(start: usize, end: usize) -> Arena {
        let start = start.next_multiple_of(ALIGNMENT);
        let end = (end - end % ALIGNMENT).max(start);
        Arena { free: Mutex::new(vec![(start, end)]) }
    }

    /// The offset of a block; `None` if there is no room.
    pub fn take(&self, bytes: usize) -> Option<usize> {
        let bytes = rounded(bytes)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.iter().position(|(start, end)| end - start >= bytes)?;
        let (start, end) = free[at];
        if end - start == bytes {
            free.remove(at);
        } else {
            free[at].0 = start + bytes;
        }
        Some(start)
    }

    /// Takes a block back.
    pub fn give_back(&self, offset: usize, bytes: usize) {
        let Some(bytes) = rounded(bytes) else { return };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
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
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> usize {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.iter().map(|(start, end)| end - start).sum()
    }
}

fn rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_whole() {
        let arena = Arena::new(100, 100 + 4096);
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
}
