//! Blocked GEMM with packed panels. The caller supplies A/B packing and the epilogue ([`GemmOperands`]).
//!
//! A is packed once, MC rows at a time, into the kernel's workspace. Each task then computes one block of NC
//! columns: it packs its B panels, which stay in L2 for all MC rows, and keeps its C accumulators next to
//! them until the last KC block is added. Nothing is allocated, and the summation order does not depend on
//! the number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::dots::MAX_SKINNY_ROWS;
use super::tasks::row_splits;
use super::{OperandA, OperandB, for_each_rows, micro_kernel_prefetch};
use crate::pool;
use crate::simd::{Simd, prefetch};

/// KC: maximum steps of K that are packed at once. Accumulators are loaded and stored once per KC block. Products of K = 768 are 1.5 to 3 %
/// faster with 1024, but sums of one long chain are less accurate.
const KC: usize = 512;

/// Maximum MC; a multiple of [`MC_MULTIPLE`].
pub(crate) const MAX_MC: usize = 1056;

/// MC is a multiple of this, which is a multiple of every MR, the one of `amx` included.
const MC_MULTIPLE: usize = 96;

/// The same for skinny products.
const SKINNY_MC: usize = 24;

/// NC: columns of a block.
pub(crate) const NC: usize = 96;

/// Products with fewer multiply-adds run on the caller's thread.
pub(super) const MIN_PARALLEL_MACS: usize = 1 << 19;

/// Prefetch distance for B panels, in steps of K: they come from L2.
const AHEAD: usize = 8;

/// Maximum MR.
const MAX_MR: usize = 8;

/// MR: rows of a micro-tile and of an A panel.
#[inline(always)]
const fn mr<S: Simd>() -> usize {
    if S::LANES >= 16 { MAX_MR } else { 6 }
}

/// NR: columns of a B panel; divides [`NC`].
#[inline(always)]
pub(crate) const fn nr<S: Simd>() -> usize {
    nr_vectors::<S>() * S::LANES
}

/// NR in vectors: with MR rows they fill the register file.
#[inline(always)]
pub(super) const fn nr_vectors<S: Simd>() -> usize {
    if S::LANES >= 16 { 3 } else { 2 }
}

/// What the blocked GEMM needs from its caller: packing of A and B, and the epilogue. Columns come in blocks
/// of [`NC`].
pub(crate) trait GemmOperands: Sync {
    /// Packs a panel of A: step after step of K, MR elements each. Rows past the end are packed as 0.
    ///
    /// # Safety
    /// `rows.len() * depth.len()` elements are writable.
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32);

    /// Packs a block of NC columns of B: panel after panel, and within a panel step after step of K. Columns
    /// past the end are packed as 0.
    ///
    /// # Safety
    /// `NC * depth.len()` elements are writable.
    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32);

    /// Epilogue: consumes one row of a finished block of C. It may overwrite `from`.
    ///
    /// # Safety
    /// `NC` elements are readable and writable at `from`. Called once per row and block.
    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32);
}

/// MC: rows that are packed at once. Blocks are about equally tall, to avoid a short last block.
pub(super) fn mc(rows: usize) -> usize {
    if rows <= MAX_SKINNY_ROWS {
        return SKINNY_MC;
    }
    rows.div_ceil(rows.div_ceil(MAX_MC)).next_multiple_of(MC_MULTIPLE)
}

/// Bytes of workspace for packed A. Kernels declare the same size in their attribute as
/// `(24 if rows <= 8 else ceil_div(ceil_div(rows, ceil_div(rows, 1056)), 96) * 96) * ceil_div(depth, 32) * 128`.
pub(crate) fn packed_bytes(rows: usize, depth: usize) -> u64 {
    (mc(rows) * depth.next_multiple_of(32) * size_of::<f32>()) as u64
}

/// The most bytes that [`packed_bytes`] returns for up to `rows` rows, if they come in blocks of at most [`MAX_MC`].
pub(crate) fn max_packed_bytes(rows: usize, depth: usize) -> u64 {
    (rows.min(MAX_MC).next_multiple_of(MC_MULTIPLE) * depth.next_multiple_of(32) * size_of::<f32>()) as u64
}

/// Splits K into KC blocks, as equal as whole vectors and packed integer words allow; one empty block if K is
/// 0.
pub(super) fn kc_blocks(depth: usize) -> impl Iterator<Item = Range<usize>> {
    let length = depth.div_ceil(depth.div_ceil(KC).max(1)).next_multiple_of(16).max(1);
    (0..depth.max(1)).step_by(length).map(move |start| start..depth.min(start + length))
}

#[repr(align(64))]
struct AlignedBuffer<const COUNT: usize>(MaybeUninit<[f32; COUNT]>);

impl<const COUNT: usize> AlignedBuffer<COUNT> {
    #[inline(always)]
    fn new() -> AlignedBuffer<COUNT> {
        AlignedBuffer(MaybeUninit::uninit())
    }
    #[inline(always)]
    fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Packed A of one MC block: KC block after KC block, and within it panel after panel.
#[derive(Clone, Copy)]
struct Packed {
    start: *mut f32,
    mc: usize,
}

// SAFETY: each panel is written by one task, and read only after all tasks finished.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

impl Packed {
    /// The panel that starts with `row`, relative to the first packed row.
    fn panel(self, row: usize, part: &Range<usize>) -> *mut f32 {
        self.start.wrapping_add(part.start * self.mc + row * part.len())
    }
}

/// Computes the GEMM for M = `rows`, N = `columns`, K = `depth`.
///
/// # Panics
/// When the workspace is smaller than [`packed_bytes`].
pub(crate) fn gemm<S: Simd>(
    s: S,
    [rows, columns, depth]: [usize; 3],
    workspace: &mut [u8],
    operands: &dyn GemmOperands,
) {
    assert!(workspace.len() as u64 >= packed_bytes(rows, depth), "workspace too small for packed A");
    let (mc, blocks) = (mc(rows), columns.div_ceil(NC));
    let packed = Packed { start: workspace.as_mut_ptr().cast(), mc };
    let parallel = rows * columns * depth >= MIN_PARALLEL_MACS;
    for first in (0..rows).step_by(mc) {
        let block_rows = first..rows.min(first + mc);
        pool::for_each_if(parallel, block_rows.len().div_ceil(mr::<S>()), &|panel| {
            let row = panel * mr::<S>();
            let rows = first + row..first + row + mr::<S>();
            for part in kc_blocks(depth) {
                let to = packed.panel(row, &part);
                // SAFETY: the workspace has space for every panel, and only this task writes this one.
                unsafe { operands.pack_a(rows.clone(), part, to) };
            }
        });
        let row_splits = row_splits(block_rows.len(), blocks);
        let split_rows = block_rows.len().div_ceil(row_splits).next_multiple_of(mr::<S>());
        pool::for_each_if(parallel, blocks * row_splits, &|task| {
            let (block, start) = (task / row_splits, task % row_splits * split_rows);
            let rows = start..block_rows.len().min(start + split_rows);
            let columns = NC.min(columns - block * NC);
            let job = Block { packed, first, rows, block_index: block, columns, depth };
            job.multiply(s, operands);
        });
    }
}

/// One task: a block of C.
struct Block {
    packed: Packed,
    /// First packed row.
    first: usize,
    /// Rows, relative to `first`.
    rows: Range<usize>,
    /// Index of the column block, and the number of columns in it.
    block_index: usize,
    columns: usize,
    depth: usize,
}

impl Block {
    #[inline(never)]
    fn multiply<S: Simd>(self, s: S, operands: &dyn GemmOperands) {
        let mut sums = AlignedBuffer::<{ MAX_MC * NC }>::new();
        let mut b = AlignedBuffer::<{ NC * KC }>::new();
        let mut c_rows = AlignedBuffer::<{ MAX_MR * NC }>::new();
        let (sums, b, c_rows) = (sums.start(), b.start(), c_rows.start());
        for part in kc_blocks(self.depth) {
            let last = part.end == self.depth;
            // SAFETY: the buffer holds NC x KC elements.
            unsafe { operands.pack_b(self.block_index, part.clone(), b) };
            for row in self.rows.clone().step_by(mr::<S>()) {
                let count = mr::<S>().min(self.rows.end - row);
                let accumulators = sums.wrapping_add((row - self.rows.start) * NC);
                let micro_tiles = MicroTiles {
                    a: self.packed.panel(row, &part),
                    b,
                    depth: part.len(),
                    from: (part.start > 0).then_some(accumulators.cast_const()),
                    to: if last { c_rows } else { accumulators },
                };
                // SAFETY: both operands are packed for this KC block, and the accumulators cover the rows of
                // a micro-tile.
                unsafe {
                    micro_tiles.multiply(s, count.next_multiple_of(2), self.columns);
                    if last {
                        for offset in 0..count {
                            operands.epilogue(
                                self.first + row + offset,
                                self.block_index,
                                c_rows.add(offset * NC),
                            );
                        }
                    }
                }
            }
        }
    }
}

/// One row of micro-tiles: a panel of A, a block of B, and the accumulators.
#[derive(Clone, Copy)]
struct MicroTiles {
    a: *const f32,
    b: *const f32,
    depth: usize,
    /// Accumulators of the previous KC blocks; `None` for the first one.
    from: Option<*const f32>,
    to: *mut f32,
}

impl MicroTiles {
    /// # Safety
    /// Both operands and the accumulators are valid for `count` rows, an even number of at most MR.
    unsafe fn multiply<S: Simd>(self, s: S, count: usize, columns: usize) {
        for first in (0..columns).step_by(nr::<S>()) {
            let b = self.b.wrapping_add(first * self.depth);
            let from = self.from.map(|from| from.wrapping_add(first));
            let block_rows = MicroTiles { b, from, to: self.to.wrapping_add(first), ..self };
            let vectors = (columns - first).min(nr::<S>()).div_ceil(S::LANES);
            for_each_rows!(S, count, |row, MR| {
                let block_rows = block_rows.below(row);
                // SAFETY: the caller guarantees operands and accumulators.
                unsafe {
                    match vectors {
                        1 => block_rows.tile::<S, MR, 1>(s),
                        3 if const { nr_vectors::<S>() == 3 } => block_rows.tile::<S, MR, 3>(s),
                        _ => block_rows.tile::<S, MR, 2>(s),
                    }
                }
            });
        }
    }

    fn below(self, rows: usize) -> MicroTiles {
        let from = self.from.map(|from| from.wrapping_add(rows * NC));
        MicroTiles { a: self.a.wrapping_add(rows), from, to: self.to.wrapping_add(rows * NC), ..self }
    }

    /// One micro-tile. Not inlined: one function per tile size keeps each body small enough to be inlined
    /// into `Simd::vectorize`, where the target features are enabled.
    #[inline(never)]
    unsafe fn tile<S: Simd, const MR: usize, const NV: usize>(self, s: S) {
        s.vectorize(|| {
            // SAFETY: the caller guarantees operands and accumulators.
            unsafe {
                let offset = |m: usize, n: usize| m * NC + n * S::LANES;
                if let Some(from) = self.from {
                    for m in 0..MR {
                        for n in 0..NV {
                            prefetch(from.wrapping_add(offset(m, n)));
                        }
                    }
                }
                let a = OperandA { at: self.a, row: 1, step: mr::<S>() };
                let b = OperandB { at: self.b, step: nr::<S>() };
                let zero = [[s.splat(0.0); NV]; MR];
                let mut sums = micro_kernel_prefetch::<S, MR, NV, AHEAD>(s, zero, a, b, self.depth, None);
                if let Some(from) = self.from {
                    for (m, sums) in sums.iter_mut().enumerate() {
                        for (n, sum) in sums.iter_mut().enumerate() {
                            *sum = s.add(*sum, s.load(from.add(offset(m, n))));
                        }
                    }
                }
                for (m, sums) in sums.iter().enumerate() {
                    for (n, &sum) in sums.iter().enumerate() {
                        s.store(self.to.add(offset(m, n)), sum);
                    }
                }
            }
        });
    }
}
