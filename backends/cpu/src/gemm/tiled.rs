//! A blocked product of bf16 rows on AMX tiles, summed in f32.
//!
//! One task computes one block of the result, as in `product`. The left factor is read as it lies where its rows are whole and
//! evenly apart; the right one is packed in pairs. Blocks do not depend on the number of threads, and nothing is allocated.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::pool;
use crate::simd::tiles::{BYTES, Left, SIDE, STEP, Sums, Tiles};
use crate::simd::{Amx, Avx512, Simd, prefetch_all};

/// Rows that are multiplied at once, and columns.
const BLOCK: usize = 2 * SIDE;

/// Most rows of a task: columns are packed once for all of them, which takes a good part of the time that tiles take for 256.
const ROWS: usize = 512;

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
    /// Left factors, whose products are added up: the right one is packed once for all of them.
    pub left: &'r [RowsAt<'r>],
    pub right: RowsAt<'r>,
    /// Rows of a left factor and of the right one, and numbers in each.
    pub sizes: [usize; 3],
}

/// Takes some columns of one row of the result, from the first one named on.
pub(crate) type Store<'s> = &'s (dyn Fn(usize, Range<usize>, &mut [f32]) + Sync);

#[repr(align(64))]
struct Memory {
    result: MaybeUninit<[f32; ROWS * COLUMNS]>,
    right: MaybeUninit<[u16; COLUMNS * DEPTH]>,
    left: MaybeUninit<[u16; BLOCK * DEPTH]>,
}

/// Multiplies.
///
/// # Safety
/// Every row that is asked for has as many readable numbers as is said.
pub(crate) unsafe fn multiply_all(s: Amx, factors: &Factors<'_>, store: Store<'_>) {
    let [rows, columns, depth] = factors.sizes;
    let (row_blocks, blocks) = (rows.div_ceil(ROWS), columns.div_ceil(COLUMNS));
    let height = rows.div_ceil(row_blocks.max(1)).next_multiple_of(BLOCK);
    let task = |number: usize| {
        let (block, first) = (number / row_blocks, number % row_blocks * height);
        let columns = block * COLUMNS..columns.min((block + 1) * COLUMNS);
        let rows = first.min(rows)..rows.min(first + height);
        // SAFETY: the caller vouches for the rows, and `s` for the instructions.
        unsafe { one_block(s.vectors(), factors, rows, columns, store) };
    };
    if rows * columns * depth < WORTH_SHARING {
        (0..row_blocks * blocks).for_each(task);
    } else {
        pool::for_each(row_blocks * blocks, &task);
    }
}

#[inline(never)]
unsafe fn one_block(
    s: Avx512,
    factors: &Factors<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    store: Store<'_>,
) {
    let depth = factors.sizes[2];
    let mut memory = MaybeUninit::<Memory>::uninit();
    // SAFETY: only addresses inside of the memory are taken.
    let (result, right, left) = unsafe {
        let memory = memory.as_mut_ptr();
        (
            (&raw mut (*memory).result).cast::<f32>(),
            (&raw mut (*memory).right).cast::<u16>(),
            (&raw mut (*memory).left).cast::<u16>(),
        )
    };
    // SAFETY: the caller vouches for the instructions and the rows; blocks stay inside the memory.
    unsafe {
        let tiles = Tiles::new();
        for start in (0..depth.max(1)).step_by(DEPTH) {
            let part = start..depth.min(start + DEPTH);
            let steps = part.len().div_ceil(STEP);
            pack_right(s, factors.right, columns.clone(), part.clone(), right);
            for row in (0..rows.len()).step_by(BLOCK) {
                let here = rows.start + row..rows.end.min(rows.start + row + BLOCK);
                for (addend, &factor) in factors.left.iter().enumerate() {
                    let (at, between) = match in_place(factor, here.clone(), &part) {
                        Some(found) => found,
                        None => {
                            pack_left(s, factor, here.clone(), part.clone(), left);
                            (left.cast_const(), DEPTH)
                        }
                    };
                    let from = at.cast::<u8>();
                    for column in (0..columns.len()).step_by(BLOCK) {
                        // Rows are pages apart, where processors do not guess what comes next.
                        let next = here.end + column / BLOCK * SHARE;
                        ask_for(factor, next.min(rows.end)..(next + SHARE).min(rows.end), &part);
                        let to = result.add(row * COLUMNS + column);
                        let packed = right.cast::<u8>().add(column / SIDE * steps * BYTES);
                        let below = to.add(SIDE * COLUMNS);
                        tiles.multiply(
                            Left { tiles: [from, from.add(SIDE * between * 2)], row: between * 2 },
                            [packed, packed.add(steps * BYTES)],
                            steps,
                            Sums {
                                tiles: [[to, to.add(SIDE)], [below, below.add(SIDE)]],
                                row: COLUMNS * 4,
                                add: start > 0 || addend > 0,
                            },
                        );
                    }
                }
            }
        }
        drop(tiles);
        for (place, row) in rows.enumerate() {
            let sums = std::slice::from_raw_parts_mut(result.add(place * COLUMNS), columns.len());
            store(row, columns.clone(), sums);
        }
    }
}

/// Rows that are asked for with each block of columns: all of the next block in the end.
const SHARE: usize = BLOCK / (COLUMNS / BLOCK);

/// Asks the memory for a part of some rows.
#[inline(always)]
fn ask_for(all: RowsAt<'_>, rows: Range<usize>, part: &Range<usize>) {
    for row in rows {
        prefetch_all(all(row).wrapping_add(part.start), part.len() * size_of::<u16>());
    }
}

/// Where the left factor begins and how far its rows are apart, if tiles can be loaded from there.
fn in_place(left: RowsAt<'_>, rows: Range<usize>, part: &Range<usize>) -> Option<(*const u16, usize)> {
    if rows.len() < BLOCK || !part.len().is_multiple_of(STEP) {
        return None;
    }
    let first = left(rows.start);
    let between = (left(rows.start + 1) as usize).checked_sub(first as usize)? / 2;
    let even = rows.enumerate().all(|(place, row)| left(row) == first.wrapping_add(place * between));
    even.then(|| (first.wrapping_add(part.start), between))
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

#[inline(never)]
unsafe fn pack_left(s: Avx512, left: RowsAt<'_>, rows: Range<usize>, part: Range<usize>, to: *mut u16) {
    for place in 0..BLOCK {
        let from = (place < rows.len()).then(|| left(rows.start + place).wrapping_add(part.start));
        s.vectorize(|| {
            for at in (0..part.len()).step_by(STEP) {
                // SAFETY: the caller vouches for the row, and the memory has DEPTH numbers a row.
                unsafe {
                    let value = match from {
                        Some(from) => load(from.add(at), part.len() - at),
                        None => _mm512_setzero_si512(),
                    };
                    _mm512_storeu_si512(to.add(place * DEPTH + at).cast(), value);
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
