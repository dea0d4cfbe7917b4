//! Blocked GEMM of bf16 rows on AMX tiles, accumulated in f32.
//!
//! As in `blocked`, A is packed once into the workspace, tile after tile, and each task computes one block of
//! columns, packing its B block as pairs (VNNI layout). The summation order does not depend on the number of
//! threads, and nothing is allocated.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::amx_in_place as in_place;
use super::blocked::{MAX_MC, mc, packed_bytes};
use super::tasks::row_splits;
use crate::pool;
use crate::simd::amx::{BYTES, ROW, SIDE, STEP, Tiles, TilesA, TilesC};
use crate::simd::{Amx, Avx512, Simd, prefetch_all};

/// Rows and columns of C computed at once: 2 x 2 tiles.
const BLOCK: usize = 2 * SIDE;

/// NC: columns of a task; packed A is read once for all of them.
pub(crate) const NC: usize = 128;

/// KC: steps of K that are packed at once.
pub(super) const KC: usize = 512;

/// Products with fewer multiply-adds run on the caller's thread.
const MIN_PARALLEL_MACS: usize = 1 << 21;

/// Rows of bf16: returns the address of a row.
pub(crate) type RowsAt<'r> = &'r (dyn Fn(usize) -> *const u16 + Sync);

/// Operands `A[rows][depth]` and `B[columns][depth]`; the product is `A * B^T`.
pub(crate) struct GemmOperands<'r> {
    /// One or two A operands, whose products are added; B is packed once for both.
    pub a: &'r [RowsAt<'r>],
    pub b: RowsAt<'r>,
    /// M, N and K.
    pub sizes: [usize; 3],
}

/// Epilogue: consumes the given columns of one row of C.
pub(crate) type Epilogue<'s> = &'s (dyn Fn(usize, Range<usize>, &mut [f32]) + Sync);

/// Packed A of one MC block: operand after operand, sixteen rows after sixteen rows, tile after tile.
#[derive(Clone, Copy)]
struct Packed {
    start: *mut u8,
    mc: usize,
    /// Tiles along K.
    steps: usize,
}

// SAFETY: each tile is written by one task, and read only after all tasks finished.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

impl Packed {
    /// The first tile of sixteen rows of an operand.
    fn tiles(self, operand: usize, row: usize) -> *mut u8 {
        self.start.wrapping_add((operand * self.mc + row) / SIDE * self.steps * BYTES)
    }
}

/// Computes the GEMM.
///
/// # Safety
/// Every row has `depth` readable elements.
///
/// # Panics
/// If the workspace is smaller than [`packed_bytes`] of at least [`BLOCK`] rows, or there are more than two A operands.
pub(crate) unsafe fn gemm(s: Amx, operands: &GemmOperands<'_>, workspace: &mut [u8], epilogue: Epilogue<'_>) {
    let [rows, columns, depth] = operands.sizes;
    // `packed_bytes` counts f32 elements, so there is space for two bf16 operands.
    assert!(operands.a.len() <= size_of::<f32>() / size_of::<u16>(), "at most two A operands");
    // With the MC of skinny products, two operands would share tiles.
    let min_rows = rows.max(BLOCK);
    assert!(workspace.len() as u64 >= packed_bytes(min_rows, depth), "workspace too small for packed A");
    if rows <= in_place::MAX_ROWS && depth > 0 && depth.is_multiple_of(STEP) {
        // SAFETY: the caller guarantees the rows; the workspace has space for two operands of at least so many rows.
        return unsafe { in_place::gemm(s, operands, workspace, epilogue) };
    }
    let (mc, blocks) = (mc(min_rows), columns.div_ceil(NC));
    let packed = Packed { start: workspace.as_mut_ptr(), mc, steps: depth.div_ceil(STEP) };
    let parallel = rows * columns * depth >= MIN_PARALLEL_MACS;
    for first in (0..rows).step_by(mc) {
        let block_rows = first..rows.min(first + mc);
        pool::for_each_if(parallel, block_rows.len().next_multiple_of(BLOCK) / SIDE, &|group| {
            let row = group * SIDE;
            let rows = (first + row).min(block_rows.end)..block_rows.end.min(first + row + SIDE);
            for (number, operand) in operands.a.iter().enumerate() {
                // SAFETY: the caller guarantees the rows; the workspace has space for all tiles, and only
                // this task writes these.
                unsafe { pack_a(s.vectors(), *operand, rows.clone(), depth, packed.tiles(number, row)) };
            }
        });
        let row_splits = row_splits(block_rows.len(), blocks);
        let split_rows = block_rows.len().div_ceil(row_splits).next_multiple_of(BLOCK);
        pool::for_each_if(parallel, blocks * row_splits, &|task| {
            let (block, start) = (task / row_splits, task % row_splits * split_rows);
            let columns = block * NC..columns.min((block + 1) * NC);
            let rows = start.min(block_rows.len())..block_rows.len().min(start + split_rows);
            let sums = &|row: usize, sums: &mut [f32]| epilogue(first + row, columns.clone(), sums);
            // SAFETY: the caller guarantees the rows, and `s` proves the instructions.
            unsafe { one_block(s.vectors(), operands, packed, rows, columns.clone(), sums) };
        });
    }
}

#[repr(align(64))]
struct Buffers {
    result: MaybeUninit<[f32; MAX_MC * NC]>,
    b: MaybeUninit<[u16; NC * KC]>,
}

/// Computes one block of C and runs the epilogue. `rows` are relative to the first packed row.
#[inline(never)]
unsafe fn one_block(
    s: Avx512,
    operands: &GemmOperands<'_>,
    packed: Packed,
    rows: Range<usize>,
    columns: Range<usize>,
    epilogue: &dyn Fn(usize, &mut [f32]),
) {
    let depth = operands.sizes[2];
    let mut buffers = MaybeUninit::<Buffers>::uninit();
    // SAFETY: only addresses inside the buffer are formed.
    let (result, b) = unsafe {
        let buffers = buffers.as_mut_ptr();
        ((&raw mut (*buffers).result).cast::<f32>(), (&raw mut (*buffers).b).cast::<u16>())
    };
    // SAFETY: the caller guarantees the instructions and the rows; blocks stay inside the buffer.
    unsafe {
        let tiles = Tiles::new();
        for start in (0..depth.max(1)).step_by(KC) {
            let part = start..depth.min(start + KC);
            let steps = part.len().div_ceil(STEP);
            pack_b(s, operands.b, columns.clone(), part, b);
            for row in rows.clone().step_by(BLOCK) {
                for operand in 0..operands.a.len() {
                    let a = [row, row + SIDE].map(|row| packed.tiles(operand, row).add(start / STEP * BYTES));
                    for column in (0..columns.len()).step_by(BLOCK) {
                        let to = result.add((row - rows.start) * NC + column);
                        let b = b.cast::<u8>().add(column / SIDE * steps * BYTES);
                        let below = to.add(SIDE * NC);
                        tiles.multiply(
                            TilesA { tiles: a.map(|tile| tile.cast_const()), row: ROW, step: BYTES },
                            [b, b.add(steps * BYTES)],
                            steps,
                            TilesC {
                                tiles: [[to, to.add(SIDE)], [below, below.add(SIDE)]],
                                row: NC * 4,
                                add: start > 0 || operand > 0,
                            },
                        );
                    }
                }
            }
        }
        drop(tiles);
        for (offset, row) in rows.enumerate() {
            let sums = std::slice::from_raw_parts_mut(result.add(offset * NC), columns.len());
            epilogue(row, sums);
        }
    }
}

/// Prefetches a part of some rows. Rows may be pages apart, which defeats the hardware prefetcher.
#[inline(always)]
fn prefetch_rows(all: RowsAt<'_>, rows: Range<usize>, part: &Range<usize>) {
    for row in rows {
        prefetch_all(all(row).wrapping_add(part.start), part.len() * size_of::<u16>());
    }
}

/// Loads up to [`STEP`] elements; lanes past `count` are 0.
#[inline(always)]
unsafe fn load(from: *const u16, count: usize) -> __m512i {
    // SAFETY: the caller guarantees `count` elements; masked lanes are not accessed.
    unsafe {
        if count >= STEP {
            _mm512_loadu_si512(from.cast())
        } else {
            _mm512_maskz_loadu_epi16((1u32 << count).wrapping_sub(1), from.cast())
        }
    }
}

/// Packs up to sixteen rows of A as tiles; missing rows are 0.
#[inline(never)]
pub(super) unsafe fn pack_a(s: Avx512, a: RowsAt<'_>, rows: Range<usize>, depth: usize, to: *mut u8) {
    for offset in 0..SIDE {
        let from = (offset < rows.len()).then(|| a(rows.start + offset));
        s.vectorize(|| {
            for step in 0..depth.div_ceil(STEP) {
                // SAFETY: the caller guarantees the row and the destination.
                unsafe {
                    let value = match from {
                        Some(from) => load(from.add(step * STEP), depth - step * STEP),
                        None => _mm512_setzero_si512(),
                    };
                    _mm512_storeu_si512(to.add(step * BYTES + offset * ROW).cast(), value);
                }
            }
        });
    }
}

/// Packs B in the VNNI layout: sixteen rows at a time, pairs of elements of each, step after step of K.
#[inline(never)]
pub(super) unsafe fn pack_b(
    s: Avx512,
    b: RowsAt<'_>,
    columns: Range<usize>,
    part: Range<usize>,
    to: *mut u16,
) {
    #[repr(align(64))]
    struct Square([u16; SIDE * STEP]);
    let steps = part.len().div_ceil(STEP);
    for group in 0..columns.len().next_multiple_of(BLOCK) / SIDE {
        let mut rows = [std::ptr::null::<u16>(); SIDE];
        for (offset, row) in rows.iter_mut().enumerate() {
            let column = columns.start + group * SIDE + offset;
            if column < columns.end {
                *row = b(column).wrapping_add(part.start);
            }
        }
        let next = columns.end.min(columns.start + (group + 1) * SIDE);
        prefetch_rows(b, next..columns.end.min(next + SIDE), &part);
        s.vectorize(|| {
            let mut square = Square([0; SIDE * STEP]);
            let square = square.0.as_mut_ptr();
            for step in 0..steps {
                // SAFETY: the caller guarantees the rows, and the buffer has space for the steps of every
                // group.
                unsafe {
                    for (offset, row) in rows.iter().enumerate() {
                        let value = if row.is_null() {
                            _mm512_setzero_si512()
                        } else {
                            load(row.add(step * STEP), part.len() - step * STEP)
                        };
                        _mm512_storeu_si512(square.add(offset * STEP).cast(), value);
                    }
                    let to = to.cast::<u8>().add((group * steps + step) * BYTES);
                    s.transpose(square.cast(), to.cast(), SIDE);
                }
            }
        });
    }
}
