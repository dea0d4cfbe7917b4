//! A blocked matrix product over the micro-kernel: whoever has the factors packs them, whoever wants the result stores it.
//!
//! One task computes one block of the result. Its right factor is packed into panels that stay in the first-level cache for all
//! rows of the block; nothing is allocated. Blocks do not depend on the number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::{Left, MOST_ROWS, Right, VECTORS, for_each_rows, multiply, rows as at_once};
use crate::pool;
use crate::simd::Simd;

/// Steps of the sum that are packed at once.
pub(crate) const DEPTH: usize = 128;

/// Rows of a block; a multiple of the rows of a micro-tile.
const BLOCK_ROWS: usize = 480;

/// Columns of a block.
pub(crate) const COLUMNS: usize = 128;

/// Products with fewer multiplications stay on the caller's thread.
const WORTH_SHARING: usize = 1 << 19;

/// Columns of a panel; it divides [`COLUMNS`].
#[inline(always)]
pub(crate) const fn panel<S: Simd>() -> usize {
    VECTORS * S::LANES
}

/// The two factors and the place of the result. Columns come in blocks of [`COLUMNS`].
pub(crate) trait Factors: Sync {
    /// Writes rows of the left factor, each [`DEPTH`] apart; rows beyond the last are 0.
    ///
    /// # Safety
    /// `rows.len() * DEPTH` numbers are writable.
    unsafe fn left(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32);

    /// Asks the memory for rows of the left factor that come next.
    fn ask_for_left(&self, rows: Range<usize>, depth: Range<usize>);

    /// Writes a block of columns of the right factor: panel after panel, and in each one step of the sum after the other. Columns
    /// beyond the last are 0.
    ///
    /// # Safety
    /// `COLUMNS * depth.len()` numbers are writable.
    unsafe fn right(&self, block: usize, depth: Range<usize>, to: *mut f32);

    /// Takes one row of a block of the result, which it may change.
    ///
    /// # Safety
    /// `COLUMNS` numbers are readable and writable. Each row of each block is stored once.
    unsafe fn store(&self, row: usize, block: usize, from: *mut f32);
}

#[repr(align(64))]
struct Numbers<const COUNT: usize>(MaybeUninit<[f32; COUNT]>);

impl<const COUNT: usize> Numbers<COUNT> {
    #[inline(always)]
    fn new() -> Numbers<COUNT> {
        Numbers(MaybeUninit::uninit())
    }
    #[inline(always)]
    fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Multiplies: so many rows, blocks of columns and steps of the sum.
pub(crate) fn multiply_all<S: Simd>(s: S, rows: usize, blocks: usize, depth: usize, factors: &dyn Factors) {
    let row_blocks = rows.div_ceil(BLOCK_ROWS);
    // Of equal size, in whole micro-tiles, so that no task is left with a sliver.
    let height = rows.div_ceil(row_blocks.max(1)).next_multiple_of(at_once::<S>());
    let task = |number: usize| {
        let (block, first) = (number / row_blocks, number % row_blocks * height);
        one_block(s, first..rows.min(first + height), block, depth, factors);
    };
    let tasks = row_blocks * blocks;
    if rows * blocks * COLUMNS * depth < WORTH_SHARING {
        (0..tasks).for_each(task);
    } else {
        pool::for_each(tasks, &task);
    }
}

#[inline(never)]
fn one_block<S: Simd>(s: S, rows: Range<usize>, block: usize, depth: usize, factors: &dyn Factors) {
    let mut result = Numbers::<{ BLOCK_ROWS * COLUMNS }>::new();
    let mut right = Numbers::<{ COLUMNS * DEPTH }>::new();
    let mut left = Numbers::<{ MOST_ROWS * DEPTH }>::new();
    let (result, right, left) = (result.start(), right.start(), left.start());
    let even = rows.len().next_multiple_of(2);
    // SAFETY: a block has at most BLOCK_ROWS rows, which is even, of COLUMNS columns.
    unsafe { std::ptr::write_bytes(result, 0, even * COLUMNS) };
    let mut start = 0;
    while start < depth {
        let steps = start..depth.min(start + DEPTH);
        // SAFETY: the buffers have the sizes that are asked for; rows of the micro-tiles stay inside the block.
        unsafe {
            factors.right(block, steps.clone(), right);
            let mut row = 0;
            while row < even {
                let count = at_once::<S>().min(even - row);
                factors.left(rows.start + row..rows.start + row + count, steps.clone(), left);
                // Rows are pages apart, where processors do not guess what comes next.
                let next = rows.start + row + count;
                factors.ask_for_left(next..rows.end.min(next + count), steps.clone());
                multiply_rows(s, count, steps.len(), left, right, result.add(row * COLUMNS));
                row += count;
            }
        }
        start += DEPTH;
    }
    for (place, row) in rows.enumerate() {
        // SAFETY: the block holds this row, and every task has rows and columns of its own.
        unsafe { factors.store(row, block, result.add(place * COLUMNS)) };
    }
}

/// Adds the product of a few rows with every panel to the result.
///
/// # Safety
/// The factors and the result are there for `count` rows, an even number up to those of a whole micro-tile.
#[inline(never)]
unsafe fn multiply_rows<S: Simd>(
    s: S,
    count: usize,
    depth: usize,
    left: *const f32,
    right: *const f32,
    result: *mut f32,
) {
    s.vectorize(|| {
        for_each_rows!(S, count, |row, MR| {
            let mut column = 0;
            while column < COLUMNS {
                // SAFETY: the caller vouches for the factors and the result.
                unsafe {
                    let a = Left { at: left.add(row * DEPTH), row: DEPTH, step: 1 };
                    let b = Right { at: right.add(column * depth), step: panel::<S>() };
                    let to = result.add(row * COLUMNS + column);
                    add_tile::<S, MR, VECTORS>(s, a, b, depth, to);
                }
                column += panel::<S>();
            }
        });
    });
}

#[inline(always)]
unsafe fn add_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    a: Left,
    b: Right,
    depth: usize,
    to: *mut f32,
) {
    // SAFETY: the caller vouches for the factors and the result.
    unsafe {
        let mut sums = [[s.splat(0.0); NV]; MR];
        for (m, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = s.load(to.add(m * COLUMNS + n * S::LANES));
            }
        }
        let sums = multiply::<S, MR, NV>(s, sums, a, b, depth);
        for (m, sums) in sums.iter().enumerate() {
            for (n, &sum) in sums.iter().enumerate() {
                s.store(to.add(m * COLUMNS + n * S::LANES), sum);
            }
        }
    }
}
