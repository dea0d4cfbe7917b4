//! The AMX product of few rows of A: B is read in place, because packing it costs more than the product. Its rows are the first
//! operand of the tiles, so the transpose of C is computed; A is packed once as the second one. The loop is bound by memory
//! bandwidth.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::amx::{Epilogue, GemmOperands, KC, NC, RowsAt, pack_a, pack_b};
use crate::pool;
use crate::rows::should_parallelize;
use crate::simd::amx::{BYTES, ROW, SIDE, STEP, Tiles, TilesA};
use crate::simd::{Amx, Avx512, Simd};

/// Maximum rows of A: with more, the time of the products exceeds the time of reading B.
pub(super) const MAX_ROWS: usize = 128;

/// Rows of B that are multiplied at once: two tiles. More products at once would leave the processor less time to read ahead: with
/// 2 x 2 tiles, two threads read 13 instead of 26 GB/s.
const BLOCK: usize = 2 * SIDE;

#[repr(align(64))]
struct Buffers {
    /// Tiles of the transpose of C: for each sixteen rows of A, two tiles of sixteen rows of B.
    tiles: MaybeUninit<[f32; MAX_ROWS * BLOCK]>,
    result: MaybeUninit<[f32; MAX_ROWS * NC]>,
    /// Rows of B that are not equally far apart, packed.
    packed_b: MaybeUninit<[u16; BLOCK * KC]>,
}

/// The packed rows of A, which tasks read.
#[derive(Clone, Copy)]
struct Packed {
    start: *mut u8,
    rows: usize,
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
        let groups = self.rows.next_multiple_of(BLOCK) / SIDE;
        self.start.wrapping_add((operand * groups + row / SIDE) * self.steps * BYTES)
    }
}

/// Computes the product. The workspace has space for A, with rows rounded up to [`BLOCK`].
///
/// # Safety
/// Every row has `depth` readable elements, a multiple of [`STEP`]; A has at most [`MAX_ROWS`] rows.
///
/// # Panics
/// If the workspace is too small.
pub(super) unsafe fn gemm(s: Amx, operands: &GemmOperands<'_>, workspace: &mut [u8], epilogue: Epilogue<'_>) {
    let [rows, columns, depth] = operands.sizes;
    let bytes = operands.a.len() * rows.next_multiple_of(BLOCK) * depth * size_of::<u16>();
    assert!(workspace.len() >= bytes, "workspace too small for packed A");
    let packed = Packed { start: workspace.as_mut_ptr(), rows, steps: depth / STEP };
    let parallel = should_parallelize(columns * depth * size_of::<u16>());
    pool::for_each_if(parallel, rows.div_ceil(BLOCK), &|block| {
        let block = block * BLOCK..rows.min((block + 1) * BLOCK);
        for (number, operand) in operands.a.iter().enumerate() {
            let to = packed.tiles(number, block.start).cast();
            // SAFETY: the caller guarantees the rows and the workspace; only this task writes these tiles.
            unsafe { pack_b(s.vectors(), *operand, block.clone(), 0..depth, to) };
        }
    });
    pool::for_each_if(parallel, columns.div_ceil(NC), &|block| {
        let columns = block * NC..columns.min((block + 1) * NC);
        // SAFETY: the caller guarantees the rows, and `s` proves the instructions.
        unsafe { one_block(s.vectors(), operands, packed, columns, epilogue) };
    });
}

/// Computes up to NC columns of all rows and runs the epilogue.
#[inline(never)]
unsafe fn one_block(
    s: Avx512,
    operands: &GemmOperands<'_>,
    packed: Packed,
    columns: Range<usize>,
    epilogue: Epilogue<'_>,
) {
    let [rows, _, depth] = operands.sizes;
    let mut buffers = MaybeUninit::<Buffers>::uninit();
    // SAFETY: only addresses inside the buffers are formed.
    let (sums, result, packed_b) = unsafe {
        let buffers = buffers.as_mut_ptr();
        (
            (&raw mut (*buffers).tiles).cast::<f32>(),
            (&raw mut (*buffers).result).cast::<f32>(),
            (&raw mut (*buffers).packed_b).cast::<u8>(),
        )
    };
    // Tile `half` of the sixteen rows of A that begin with `row`.
    let tile = |row: usize, half: usize| sums.wrapping_add((row / SIDE * 2 + half) * SIDE * SIDE);
    // SAFETY: the caller guarantees the instructions.
    let tiles = unsafe { Tiles::new() };
    for column in columns.clone().step_by(BLOCK) {
        let from = column..columns.end.min(column + BLOCK);
        let stride = uniform_stride(operands.b, from.clone());
        for start in (0..depth).step_by(KC) {
            let part = start..depth.min(start + KC);
            // SAFETY: the caller guarantees the rows; the buffers have space for 32 rows of KC elements and all tiles.
            unsafe {
                for operand in 0..operands.a.len() {
                    for row in (0..rows).step_by(SIDE) {
                        let a = match stride {
                            Some(row) => TilesA {
                                tiles: [0, SIDE].map(|half| (operands.b)(column + half).add(start).cast()),
                                row,
                                step: ROW,
                            },
                            None => {
                                if operand == 0 && row == 0 {
                                    pack_rows(s, operands.b, &from, &part, packed_b);
                                }
                                let tile = part.len() / STEP * BYTES;
                                TilesA { tiles: [packed_b, packed_b.add(tile)], row: ROW, step: BYTES }
                            }
                        };
                        let b = packed.tiles(operand, row).add(start / STEP * BYTES);
                        tiles.multiply_column(
                            a,
                            b,
                            part.len() / STEP,
                            [tile(row, 0), tile(row, 1)],
                            start > 0 || operand > 0,
                        );
                    }
                }
            }
        }
        for row in (0..rows).step_by(SIDE) {
            for half in [0, 1] {
                let to = result.wrapping_add(row * NC + column - columns.start + half * SIDE);
                // SAFETY: the result has space for whole tiles, and the product wrote the tile.
                s.vectorize(|| unsafe { s.transpose(tile(row, half), to, NC) });
            }
        }
    }
    drop(tiles);
    for row in 0..rows {
        // SAFETY: all columns of the row were written.
        let sums = unsafe { std::slice::from_raw_parts_mut(result.add(row * NC), columns.len()) };
        epilogue(row, columns.clone(), sums);
    }
}

/// Bytes between consecutive rows if a whole block of them is equally far apart.
fn uniform_stride(rows: RowsAt<'_>, block: Range<usize>) -> Option<usize> {
    if block.len() < BLOCK {
        return None;
    }
    let addresses: [usize; BLOCK] = std::array::from_fn(|index| rows(block.start + index).addr());
    let stride = addresses[1].checked_sub(addresses[0])?;
    let half = |half: &[usize]| half.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == stride);
    (half(&addresses[..SIDE]) && half(&addresses[SIDE..])).then_some(stride)
}

/// Packs a part of up to 32 rows of B as two columns of tiles; missing rows are 0.
unsafe fn pack_rows(s: Avx512, b: RowsAt<'_>, rows: &Range<usize>, part: &Range<usize>, to: *mut u8) {
    for half in [0, 1] {
        let start = rows.end.min(rows.start + half * SIDE);
        let half_rows = start..rows.end.min(start + SIDE);
        let to = to.wrapping_add(half * part.len() / STEP * BYTES);
        // SAFETY: the caller guarantees the rows and the destination.
        unsafe { pack_a(s, &|row| b(row).wrapping_add(part.start), half_rows, part.len(), to) };
    }
}
