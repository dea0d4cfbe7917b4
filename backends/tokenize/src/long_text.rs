//! Splits one long text over the threads of the pool, at positions that do not change its ids.

use std::sync::{Mutex, PoisonError};

use crate::memory::{self, OutOfMemory};

/// Minimum bytes of a part, so that scheduling overhead stays small.
pub const PART_BYTES: usize = 1 << 15;
/// Texts below this size are not split.
const MIN_BYTES: usize = 4 * PART_BYTES;

/// The bounds of the parts of a text from `start` to `end`, both included; `None` if it is not split. `may_end` returns whether a text may
/// be split at a position.
pub fn parts(start: usize, end: usize, may_end: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
    if end - start < MIN_BYTES || lz_pool::threads() < 2 {
        return None;
    }
    let mut bounds = vec![start];
    let mut from = start + PART_BYTES;
    while let Some(bound) = (from..end).find(|position| may_end(*position)) {
        bounds.push(bound);
        from = bound + PART_BYTES;
    }
    bounds.push(end);
    (bounds.len() > 2).then_some(bounds)
}

/// Appends the ids of the parts in order; `encode` appends the ids between two bounds.
pub fn encode(
    bounds: &[usize],
    ids: &mut Vec<i32>,
    encode: impl Fn(usize, usize, &mut Vec<i32>) -> Result<(), OutOfMemory> + Sync,
) -> Result<(), OutOfMemory> {
    type Part = Mutex<Result<Vec<i32>, OutOfMemory>>;
    let encoded: Vec<Part> = (1..bounds.len()).map(|_| Mutex::new(Ok(Vec::new()))).collect();
    lz_pool::for_each(encoded.len(), &|part: usize| {
        let (start, end) = (bounds[part], bounds[part + 1]);
        let own = memory::with_capacity((end - start) / 3 + 8);
        let own = own.and_then(|mut own| encode(start, end, &mut own).map(|()| own));
        *encoded[part].lock().unwrap_or_else(PoisonError::into_inner) = own;
    });
    for part in encoded {
        let part = part.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        memory::reserve(ids, part.len())?;
        ids.extend_from_slice(&part);
    }
    Ok(())
}
