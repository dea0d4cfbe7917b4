//! Partition of a GEMM into tasks. It depends only on the problem sizes, never on the number of threads.

/// Minimum number of tasks of a GEMM.
const MIN_TASKS: usize = 8;

/// Minimum rows of a task where rows are split because there are few column blocks: each task packs its B
/// block again.
const MIN_SPLIT_ROWS: usize = 192;

/// Number of row splits per column block.
pub(super) fn row_splits(rows: usize, blocks: usize) -> usize {
    MIN_TASKS.div_ceil(blocks.max(1)).min(rows / MIN_SPLIT_ROWS).max(1)
}
