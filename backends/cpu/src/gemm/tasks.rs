//! How a product is cut into tasks: by its sizes alone.

use crate::pool;

/// Tasks that a product should have at least.
const TASKS: usize = 8;

/// Rows that are worth a task of their own where there are few blocks of columns: each task packs its block anew.
const PIECE: usize = 192;

/// Into how many pieces the rows are cut for each block of columns.
pub(super) fn pieces(rows: usize, blocks: usize) -> usize {
    TASKS.div_ceil(blocks.max(1)).min(rows / PIECE).max(1)
}

/// Runs tasks, on the pool if they are worth sharing.
pub(super) fn for_each(shared: bool, tasks: usize, task: impl Fn(usize) + Sync) {
    if shared {
        pool::for_each(tasks, &task);
    } else {
        (0..tasks).for_each(task);
    }
}
