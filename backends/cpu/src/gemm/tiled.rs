//! A blocked product of bf16 rows on AMX tiles, summed in f32.
//!
//! As in `product` the left factor is packed once into the workspace, tile after tile, and one task computes one block of columns,
//! whose right factor it packs in pairs. What is added in which order does not depend on the number of threads, and nothing is allocated.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::product::{BLOCK_ROWS, height, packed_bytes};
use super::tasks::{for_each, pieces};
use crate::simd::tiles::{BYTES, Left, ROW, SIDE, STEP, Sums, Tiles};
use crate::simd::{Amx, Avx512, Simd, prefetch_all};

/// Rows that are multiplied at once, and columns.
const BLOCK: usize = 2 * SIDE;

/// Columns of a task: rows are read once for all of them.
pub(crate) const COLUMNS: usize = 128;

/// Steps of the sum that are packed at once.
const DEPTH: usize = 512;

/// Products with fewer multiplications stay on the caller's thread.
const WORTH_SHARING: usize = 1 << 21;

/// Rows of bf16: where each begins.
pub(crate) type RowsAt<'r> = &'r (dyn Fn(usize) -> *const u16 + Sync);

/// Factors whose rows are multiplied with each other.
pub(crate) struct Factors<'r> {
    /// One or two left factors, whose products are added up: the right one is packed once for both.
    pub left: &'r [RowsAt<'r>],
    pub right: RowsAt<'r>,
    /// Rows of a left factor and of the right one, and numbers in each.
    pub sizes: [usize; 3],
}

/// Takes some columns of one row of the result, from the first one named on.
pub(crate) type Store<'s> = &'s (dyn Fn(usize, Range<usize>, &mut [f32]) + Sync);

/// The left factors of some rows: one after the other, in each sixteen rows after the other, and in those tile after tile.
#[derive(Clone, Copy)]
struct Packed {
    start: *mut u8,
    height: usize,
    /// Tiles that the depth takes.
    steps: usize,
}

// SAFETY: each tile is written by one task, and read when all are.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

impl Packed {
    /// The first tile of sixteen rows of a factor.
    fn tiles(self, factor: usize, row: usize) -> *mut u8 {
        self.start.wrapping_add((factor * self.height + row) / SIDE * self.steps * BYTES)
    }
}

/// Multiplies.
///
/// # Safety
/// Every row that is asked for has as many readable numbers as is said.
///
/// # Panics
/// When the workspace is smaller than [`packed_bytes`], or there are more than two left factors.
pub(crate) unsafe fn multiply_all(s: Amx, factors: &Factors<'_>, workspace: &mut [u8], store: Store<'_>) {
    let [rows, columns, depth] = factors.sizes;
    // It is counted in f32.
    assert!(factors.left.len() <= size_of::<f32>() / size_of::<u16>(), "room for two factors of halves");
    assert!(workspace.len() as u64 >= packed_bytes(rows, depth), "room for the left factors");
    let (height, blocks) = (height(rows), columns.div_ceil(COLUMNS));
    let packed = Packed { start: workspace.as_mut_ptr(), height, steps: depth.div_ceil(STEP) };
    let shared = rows * columns * depth >= WORTH_SHARING;
    for first in (0..rows).step_by(height) {
        let here = first..rows.min(first + height);
        for_each(shared, here.len().next_multiple_of(BLOCK) / SIDE, |group| {
            let row = group * SIDE;
            let rows = (first + row).min(here.end)..here.end.min(first + row + SIDE);
            for (number, factor) in factors.left.iter().enumerate() {
                // SAFETY: the caller vouches for the rows; the workspace has room for all tiles, and this task alone writes these.
                unsafe { pack_left(s.vectors(), *factor, rows.clone(), depth, packed.tiles(number, row)) };
            }
        });
        let pieces = pieces(here.len(), blocks);
        let piece = here.len().div_ceil(pieces).next_multiple_of(BLOCK);
        for_each(shared, blocks * pieces, |task| {
            let (block, start) = (task / pieces, task % pieces * piece);
            let columns = block * COLUMNS..columns.min((block + 1) * COLUMNS);
            let rows = start.min(here.len())..here.len().min(start + piece);
            let sums = &|row: usize, sums: &mut [f32]| store(first + row, columns.clone(), sums);
            // SAFETY: the caller vouches for the rows, and `s` for the instructions.
            unsafe { one_block(s.vectors(), factors, packed, rows, columns.clone(), sums) };
        });
    }
}

#[repr(align(64))]
struct Memory {
    result: MaybeUninit<[f32; BLOCK_ROWS * COLUMNS]>,
    right: MaybeUninit<[u16; COLUMNS * DEPTH]>,
}

/// Rows are counted from the first that is packed.
#[inline(never)]
unsafe fn one_block(
    s: Avx512,
    factors: &Factors<'_>,
    packed: Packed,
    rows: Range<usize>,
    columns: Range<usize>,
    store: &dyn Fn(usize, &mut [f32]),
) {
    let depth = factors.sizes[2];
    let mut memory = MaybeUninit::<Memory>::uninit();
    // SAFETY: only addresses inside of the memory are taken.
    let (result, right) = unsafe {
        let memory = memory.as_mut_ptr();
        ((&raw mut (*memory).result).cast::<f32>(), (&raw mut (*memory).right).cast::<u16>())
    };
    // SAFETY: the caller vouches for the instructions and the rows; blocks stay inside the memory.
    unsafe {
        let tiles = Tiles::new();
        for start in (0..depth.max(1)).step_by(DEPTH) {
            let part = start..depth.min(start + DEPTH);
            let steps = part.len().div_ceil(STEP);
            pack_right(s, factors.right, columns.clone(), part, right);
            for row in rows.clone().step_by(BLOCK) {
                for factor in 0..factors.left.len() {
                    let left =
                        [row, row + SIDE].map(|row| packed.tiles(factor, row).add(start / STEP * BYTES));
                    for column in (0..columns.len()).step_by(BLOCK) {
                        let to = result.add((row - rows.start) * COLUMNS + column);
                        let right = right.cast::<u8>().add(column / SIDE * steps * BYTES);
                        let below = to.add(SIDE * COLUMNS);
                        tiles.multiply(
                            Left { tiles: left.map(|tile| tile.cast_const()), row: ROW, step: BYTES },
                            [right, right.add(steps * BYTES)],
                            steps,
                            Sums {
                                tiles: [[to, to.add(SIDE)], [below, below.add(SIDE)]],
                                row: COLUMNS * 4,
                                add: start > 0 || factor > 0,
                            },
                        );
                    }
                }
            }
        }
        drop(tiles);
        for (place, row) in rows.enumerate() {
            let sums = std::slice::from_raw_parts_mut(result.add(place * COLUMNS), columns.len());
            store(row, sums);
        }
    }
}

/// Asks the memory for a part of some rows: they are pages apart, where processors do not guess what comes next.
#[inline(always)]
fn ask_for(all: RowsAt<'_>, rows: Range<usize>, part: &Range<usize>) {
    for row in rows {
        prefetch_all(all(row).wrapping_add(part.start), part.len() * size_of::<u16>());
    }
}

/// Loads up to [`STEP`] numbers; those that are not there are 0.
#[inline(always)]
unsafe fn load(from: *const u16, count: usize) -> __m512i {
    // SAFETY: the caller vouches for so many numbers; masked lanes are not touched.
    unsafe {
        if count >= STEP {
            _mm512_loadu_si512(from.cast())
        } else {
            _mm512_maskz_loadu_epi16((1u32 << count).wrapping_sub(1), from.cast())
        }
    }
}

/// Up to sixteen rows as tiles; those that are not there are 0.
#[inline(never)]
unsafe fn pack_left(s: Avx512, left: RowsAt<'_>, rows: Range<usize>, depth: usize, to: *mut u8) {
    for place in 0..SIDE {
        let from = (place < rows.len()).then(|| left(rows.start + place));
        s.vectorize(|| {
            for step in 0..depth.div_ceil(STEP) {
                // SAFETY: the caller vouches for the row and for room.
                unsafe {
                    let value = match from {
                        Some(from) => load(from.add(step * STEP), depth - step * STEP),
                        None => _mm512_setzero_si512(),
                    };
                    _mm512_storeu_si512(to.add(step * BYTES + place * ROW).cast(), value);
                }
            }
        });
    }
}

/// Sixteen rows of the right factor at a time: pairs of numbers of each, one step after the other.
#[inline(never)]
unsafe fn pack_right(s: Avx512, right: RowsAt<'_>, columns: Range<usize>, part: Range<usize>, to: *mut u16) {
    #[repr(align(64))]
    struct Square([u16; SIDE * STEP]);
    let steps = part.len().div_ceil(STEP);
    for group in 0..columns.len().next_multiple_of(BLOCK) / SIDE {
        let mut rows = [std::ptr::null::<u16>(); SIDE];
        for (place, row) in rows.iter_mut().enumerate() {
            let column = columns.start + group * SIDE + place;
            if column < columns.end {
                *row = right(column).wrapping_add(part.start);
            }
        }
        let next = columns.end.min(columns.start + (group + 1) * SIDE);
        ask_for(right, next..columns.end.min(next + SIDE), &part);
        s.vectorize(|| {
            let mut square = Square([0; SIDE * STEP]);
            let square = square.0.as_mut_ptr();
            for step in 0..steps {
                // SAFETY: the caller vouches for the rows, and the memory has room for the steps of every group.
                unsafe {
                    for (place, row) in rows.iter().enumerate() {
                        let value = if row.is_null() {
                            _mm512_setzero_si512()
                        } else {
                            load(row.add(step * STEP), part.len() - step * STEP)
                        };
                        _mm512_storeu_si512(square.add(place * STEP).cast(), value);
                    }
                    let to = to.cast::<u8>().add((group * steps + step) * BYTES);
                    s.transpose(square.cast(), to.cast(), SIDE);
                }
            }
        });
    }
}
