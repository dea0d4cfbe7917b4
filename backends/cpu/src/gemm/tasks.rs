//! Partition of a GEMM into tasks. It depends only on the problem sizes, never on the number of threads.

use crate::pool;

/// Minimum number of tasks of a GEMM.
const MIN_TASKS: usize = 8;

/// Minimum rows of a task where rows are split because there are few column blocks: each task packs its B
/// block again.
const MIN_SPLIT_ROWS: usize = 192;

/// Number of row splits per column block.
pub(super) fn row_splits(rows: usize, blocks: usize) -> usize {
    MIN_TASKS.div_ceil(blocks.max(1)).min(rows / MIN_SPLIT_ROWS).max(1)
}

/// Runs tasks, on the thread pool if `parallel`.
pub(super) fn for_each(parallel: bool, tasks: usize, task: impl Fn(usize) + Sync) {
    if parallel {
        pool::for_each(tasks, &task);
    } else {
        (0..tasks).for_each(task);
    }
}
