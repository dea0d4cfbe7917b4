//! GEMM with B packed ahead of the call and A read in place: for weights, which do not change between calls.
//!
//! Sums have the same order as those of `blocked`, so results are the same bits with and without packed
//! weights. Each task computes a block of rows of one panel of columns. Tasks go over all panels before the next
//! block of rows: the block of A stays in L2 while the panels of B stream through.

use std::mem::MaybeUninit;
use std::ops::Range;

use lz_core::tensor::Pages;
use lz_core::{KernelError, Reason, ReasonCode};

use super::blocked::{MIN_PARALLEL_MACS, kc_blocks, nr, nr_vectors};
use super::pack::transpose_rows;
use super::{CACHE_LINE, OperandA, OperandB, micro_kernel_prefetch};
use crate::pool;
use crate::rows::{Rows, for_each_range, should_parallelize};
use crate::simd::{Simd, prefetch};

/// Maximum NR.
const MAX_NR: usize = 48;

/// Rows whose partial sums a task keeps on its stack between KC blocks.
const MAX_ROWS: usize = 264;

/// A block of rows of A has about this many bytes. The smallest L2 of processors with AVX-512 has 1 MB, and panels, sums and outputs pass
/// through it, so a larger block would not stay there.
const MAX_BLOCK_BYTES: usize = 384 << 10;

/// Minimum rows of a block, so that a panel of B is read often enough from L2.
const MIN_BLOCK_ROWS: usize = 64;

/// Minimum number of tasks of a product; rows are split if there are fewer panels.
const MIN_TASKS: usize = 16;

/// Minimum rows of a task that was split.
const MIN_SPLIT_ROWS: usize = 16;

/// Products of so few rows are bound by memory. They read several panels at once: a core has more reads under way with several streams than
/// with one, and reads 22 instead of 14 GB/s.
const MAX_FEW_ROWS: usize = 2;

/// Panels that are read at once; their sums for [`MAX_FEW_ROWS`] fill the registers.
const MAX_GROUP: usize = 4;

/// Minimum number of groups of panels, for several threads.
const MIN_GROUPS: usize = 4;

/// Prefetch distance if several panels are read at once.
const GROUP_AHEAD: usize = 16;

/// Prefetch distance for B panels, in steps of K, if a panel is read only once: 6 KB of AVX-512 panels. Panels are consecutive, so the end of
/// one prefetches the next.
const FAR_AHEAD: usize = 32;

/// The same if several tiles of rows read a panel. The first ones also prefetch the next panel into L2, a part each: while they compute,
/// memory has time for it. Without this, the first tile of every panel waits for memory.
const AHEAD: usize = 8;

/// A weight of f32 rows, packed: panel after panel of NR rows, and within a panel step after step of K.
#[derive(Debug)]
pub(crate) struct PackedPanels {
    data: Pages,
    columns: usize,
    depth: usize,
    wide: usize,
}

impl PackedPanels {
    /// Packs all rows of a weight.
    pub(crate) fn new<S: Simd>(s: S, weight: &Rows<'_, f32>) -> Result<PackedPanels, KernelError> {
        let (columns, depth, wide) = (weight.count(), weight.width(), nr::<S>());
        let panels = columns.div_ceil(wide);
        let bytes = panels * wide * depth * size_of::<f32>();
        let mut data = Pages::zeroed(bytes).ok_or_else(|| {
            let detail = format!("{bytes} bytes of packed weights");
            KernelError::because(Reason::new(ReasonCode::OutOfMemory).message(detail))
        })?;
        let start = Start(data.as_mut_ptr().cast::<f32>());
        for_each_range(panels, 2 * wide * depth * size_of::<f32>(), &|panels| {
            for panel in panels {
                let first = panel * wide;
                let row = |index: usize| (first + index < columns).then(|| weight.row(first + index));
                // SAFETY: every panel has `wide * depth` elements, and only this task writes this one.
                unsafe { transpose_rows(s, wide, wide, 0..depth, row, start.at(first * depth)) };
            }
        });
        Ok(PackedPanels { data, columns, depth, wide })
    }

    /// Whether it is the packed form, for `S`, of a weight of this size.
    pub(crate) fn fits<S: Simd>(&self, columns: usize, depth: usize) -> bool {
        (self.columns, self.depth, self.wide) == (columns, depth, nr::<S>())
    }

    fn panel(&self, index: usize) -> *const f32 {
        self.data.as_ptr().cast::<f32>().wrapping_add(index * self.wide * self.depth)
    }
}

/// The start of packed memory, for several tasks.
struct Start(*mut f32);

// SAFETY: tasks write disjoint elements.
unsafe impl Sync for Start {}

impl Start {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// Consumes finished sums of `P` products of the same A.
pub(crate) trait TileEpilogue<const P: usize>: Sync {
    /// Prefetches the outputs of a tile that is written soon. Without this the stores wait for memory.
    fn prefetch(&self, rows: Range<usize>, columns: Range<usize>);

    /// Row `m` of product `p` begins at `tiles[p] + m * step`.
    ///
    /// # Safety
    /// `rows.len() * step` elements are readable and writable at each tile. Called once per tile.
    unsafe fn write(&self, rows: Range<usize>, columns: Range<usize>, tiles: [*mut f32; P], step: usize);
}

/// Products of one A with `P` weights of the same size.
pub(crate) struct Product<'a, S, const P: usize> {
    pub s: S,
    /// Row `m` of A begins at `a + m * stride`.
    pub a: *const f32,
    pub stride: usize,
    pub rows: usize,
    pub b: [&'a PackedPanels; P],
}

// SAFETY: tasks only read the operands.
unsafe impl<S: Sync, const P: usize> Sync for Product<'_, S, P> {}

#[repr(align(64))]
struct Buffer<const P: usize, const COUNT: usize>(MaybeUninit<[[f32; COUNT]; P]>);

impl<const P: usize, const COUNT: usize> Buffer<P, COUNT> {
    #[inline(always)]
    fn new() -> Buffer<P, COUNT> {
        Buffer(MaybeUninit::uninit())
    }
    #[inline(always)]
    fn start(&mut self, part: usize) -> *mut f32 {
        self.0.as_mut_ptr().cast::<f32>().wrapping_add(part * COUNT)
    }
}

/// Rows of a full micro-tile.
const fn mr<S: Simd>() -> usize {
    if S::LANES >= 16 { 8 } else { 6 }
}

/// Maximum MR.
const MAX_MR: usize = 8;

impl<S: Simd, const P: usize> Product<'_, S, P> {
    /// Computes all tiles.
    ///
    /// # Safety
    /// A has `rows` rows of `depth` elements, and all weights have the same size, packed for `S`.
    pub(crate) unsafe fn run(&self, epilogue: &dyn TileEpilogue<P>) {
        let (columns, depth) = (self.b[0].columns, self.b[0].depth);
        let panels = columns.div_ceil(nr::<S>());
        if self.rows <= MAX_FEW_ROWS {
            // Tasks of about equally many panels.
            let group = panels.div_ceil(MIN_GROUPS).clamp(1, MAX_GROUP);
            let parallel = should_parallelize(columns * depth * P * size_of::<f32>());
            pool::for_each_if(parallel, panels.div_ceil(group), &|task| {
                let first = task * group;
                // SAFETY: the caller guarantees the operands.
                unsafe { self.few_rows(first..panels.min(first + group), epilogue) };
            });
            return;
        }
        let block_rows = block_rows(self.rows, panels, depth).next_multiple_of(mr::<S>());
        let blocks = self.rows.div_ceil(block_rows);
        // Few rows are bound by reading the weights.
        let parallel = self.rows * columns * depth * P >= MIN_PARALLEL_MACS
            || should_parallelize(columns * depth * P * size_of::<f32>());
        // Threads take one task after the other, so each of them skips those of the others.
        let stride = if parallel { lz_pool::threads() } else { 1 };
        pool::for_each_if(parallel, panels * blocks, &|task| {
            let (panel, start) = (task % panels, task / panels * block_rows);
            let next = (task + stride) % panels;
            // SAFETY: the caller guarantees the operands.
            unsafe { self.panel(panel, next, start..self.rows.min(start + block_rows), epilogue) };
        });
    }

    /// All rows, at most [`MAX_FEW_ROWS`], of up to [`MAX_GROUP`] panels.
    unsafe fn few_rows(&self, panels: Range<usize>, epilogue: &dyn TileEpilogue<P>) {
        let (columns, depth, wide) = (self.b[0].columns, self.b[0].depth, nr::<S>());
        let mut sums = Buffer::<P, { MAX_GROUP * MAX_FEW_ROWS * MAX_NR }>::new();
        for (index, b) in self.b.iter().enumerate() {
            for part in kc_blocks(depth) {
                let at = FewRows {
                    a: self.a.wrapping_add(part.start),
                    stride: self.stride,
                    b: b.panel(panels.start).wrapping_add(part.start * wide),
                    panel: depth * wide,
                    depth: part.len(),
                    is_first: part.start == 0,
                    to: sums.start(index),
                };
                // SAFETY: the caller guarantees the operands; the buffer has a row of NR sums per panel and row.
                unsafe { at.multiply(self.s, self.rows, panels.len()) };
            }
        }
        for (index, panel) in panels.enumerate() {
            let columns = panel * wide..columns.min((panel + 1) * wide);
            let tiles =
                std::array::from_fn(|product| sums.start(product).wrapping_add(index * self.rows * wide));
            // SAFETY: the tiles have a row of NR sums per row.
            unsafe { epilogue.write(0..self.rows, columns, tiles, wide) };
        }
    }

    /// Some rows, at most [`MAX_ROWS`], of one panel; `next` is the panel that this thread probably needs then.
    unsafe fn panel(&self, panel: usize, next: usize, rows: Range<usize>, epilogue: &dyn TileEpilogue<P>) {
        let (columns, depth, wide) = (self.b[0].columns, self.b[0].depth, nr::<S>());
        let columns = panel * wide..columns.min((panel + 1) * wide);
        let vectors = columns.len().div_ceil(S::LANES);
        let mut sums = Buffer::<P, { MAX_ROWS * MAX_NR }>::new();
        let mut finished = Buffer::<P, { MAX_MR * MAX_NR }>::new();
        for part in kc_blocks(depth) {
            let last = part.end == depth;
            let single = rows.len() <= mr::<S>();
            let mut parts_of_next = (0..wide / CACHE_LINE).map(|index| index * part.len() * CACHE_LINE);
            let mut row = rows.start;
            while row < rows.end {
                let count = tile_rows::<S>(rows.end - row);
                let part_of_next = parts_of_next.next();
                let mut tiles = [std::ptr::null_mut(); P];
                for (index, tile) in tiles.iter_mut().enumerate() {
                    let partial = sums.start(index).wrapping_add((row - rows.start) * wide);
                    let to = if last { finished.start(index) } else { partial };
                    let begin = part.start * wide;
                    let b = self.b[index].panel(panel).wrapping_add(begin);
                    let later = part_of_next
                        .map_or(b, |offset| self.b[index].panel(next).wrapping_add(begin + offset));
                    let at = MicroTile {
                        a: self.a.wrapping_add(row * self.stride + part.start),
                        stride: self.stride,
                        b,
                        // Lines of the panel itself are there already: prefetching them again costs nothing.
                        next: (!single).then_some(later),
                        depth: part.len(),
                        from: (part.start > 0).then_some(partial.cast_const()),
                        to,
                    };
                    if last && index == 0 {
                        epilogue.prefetch(row..row + count, columns.clone());
                    }
                    // SAFETY: the caller guarantees the operands; the buffers have a row of NR sums per row.
                    unsafe { at.multiply(self.s, count, vectors) };
                    *tile = to;
                }
                if last {
                    // SAFETY: the tiles have `count` rows of NR sums.
                    unsafe { epilogue.write(row..row + count, columns.clone(), tiles, wide) };
                }
                row += count;
            }
        }
    }
}

/// Rows of a block, about equally many in each: their part of A fits in L2, and there are enough tasks. At most [`MAX_ROWS`] after
/// rounding up to whole micro-tiles.
fn block_rows(rows: usize, panels: usize, depth: usize) -> usize {
    let resident = MAX_BLOCK_BYTES / (depth.max(1) * size_of::<f32>());
    let resident = resident.clamp(MIN_BLOCK_ROWS, MAX_ROWS - MAX_MR);
    let splits = MIN_TASKS.div_ceil(panels.max(1)).min(rows / MIN_SPLIT_ROWS);
    rows.div_ceil(rows.div_ceil(resident).max(splits).max(1)).max(1)
}

/// Rows of the next micro-tile.
fn tile_rows<S: Simd>(left: usize) -> usize {
    match left {
        1 => 1,
        2 | 3 => 2,
        left if left < mr::<S>() => 4,
        _ => mr::<S>(),
    }
}

/// One micro-tile: rows of A, a panel of B, and the sums of the previous KC blocks.
#[derive(Clone, Copy)]
struct MicroTile {
    a: *const f32,
    stride: usize,
    b: *const f32,
    /// What is prefetched for a later tile; `None` if the panel is read only once.
    next: Option<*const f32>,
    depth: usize,
    from: Option<*const f32>,
    to: *mut f32,
}

impl MicroTile {
    /// # Safety
    /// The operands and the sums are valid for `rows` (as [`tile_rows`] returns) and `vectors`.
    unsafe fn multiply<S: Simd>(self, s: S, rows: usize, vectors: usize) {
        // SAFETY: the caller guarantees operands and sums.
        unsafe {
            match rows {
                1 => self.columns::<S, 1>(s, vectors),
                2 => self.columns::<S, 2>(s, vectors),
                4 => self.columns::<S, 4>(s, vectors),
                _ if const { mr::<S>() == MAX_MR } => self.columns::<S, MAX_MR>(s, vectors),
                _ => self.columns::<S, 6>(s, vectors),
            }
        }
    }

    unsafe fn columns<S: Simd, const MR: usize>(self, s: S, vectors: usize) {
        // SAFETY: the caller guarantees operands and sums.
        unsafe {
            match vectors {
                1 => self.tile_of::<S, MR, 1>(s),
                3 if const { nr_vectors::<S>() == 3 } => self.tile_of::<S, MR, 3>(s),
                _ => self.tile_of::<S, MR, 2>(s),
            }
        }
    }

    unsafe fn tile_of<S: Simd, const MR: usize, const NV: usize>(self, s: S) {
        // SAFETY: the caller guarantees operands and sums.
        unsafe {
            match self.next {
                Some(_) => self.tile::<S, MR, NV, AHEAD>(s),
                None => self.tile::<S, MR, NV, FAR_AHEAD>(s),
            }
        }
    }

    /// Not inlined: one function per tile size keeps each body small enough to be inlined into
    /// `Simd::vectorize`, where the target features are enabled.
    #[inline(never)]
    unsafe fn tile<S: Simd, const MR: usize, const NV: usize, const DISTANCE: usize>(self, s: S) {
        s.vectorize(|| {
            // SAFETY: the caller guarantees operands and sums.
            unsafe {
                let offset = |m: usize, n: usize| m * nr::<S>() + n * S::LANES;
                if let Some(from) = self.from {
                    for m in 0..MR {
                        for n in 0..NV {
                            prefetch(from.wrapping_add(offset(m, n)));
                        }
                    }
                }
                let a = OperandA { at: self.a, row: self.stride, step: 1 };
                let b = OperandB { at: self.b, step: nr::<S>() };
                let zero = [[s.splat(0.0); NV]; MR];
                let next = if DISTANCE == AHEAD { Some(self.next.unwrap_or(self.b)) } else { None };
                let mut sums = micro_kernel_prefetch::<S, MR, NV, DISTANCE>(s, zero, a, b, self.depth, next);
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

/// A few rows of A and several panels of B.
#[derive(Clone, Copy)]
struct FewRows {
    a: *const f32,
    stride: usize,
    /// The first panel; the others follow at a distance of `panel` elements.
    b: *const f32,
    panel: usize,
    depth: usize,
    /// Whether there are no sums of previous KC blocks.
    is_first: bool,
    /// Row `m` of panel `g` is at `(g * rows + m) * NR`.
    to: *mut f32,
}

impl FewRows {
    /// # Safety
    /// The operands and the sums are valid for 1 or 2 rows and up to [`MAX_GROUP`] panels.
    unsafe fn multiply<S: Simd>(self, s: S, rows: usize, panels: usize) {
        // SAFETY: the caller guarantees operands and sums.
        unsafe {
            match rows {
                1 if const { nr_vectors::<S>() == 3 } => self.panels::<S, 1, 3>(s, panels),
                1 => self.panels::<S, 1, 2>(s, panels),
                _ if const { nr_vectors::<S>() == 3 } => self.panels::<S, 2, 3>(s, panels),
                _ => self.panels::<S, 2, 2>(s, panels),
            }
        }
    }

    unsafe fn panels<S: Simd, const MR: usize, const NV: usize>(self, s: S, panels: usize) {
        // SAFETY: the caller guarantees operands and sums.
        unsafe {
            match panels {
                1 => self.group::<S, MR, NV, 1>(s),
                2 => self.group::<S, MR, NV, 2>(s),
                3 => self.group::<S, MR, NV, 3>(s),
                _ => self.group::<S, MR, NV, MAX_GROUP>(s),
            }
        }
    }

    /// Not inlined, as [`MicroTile::tile`].
    #[inline(never)]
    unsafe fn group<S: Simd, const MR: usize, const NV: usize, const G: usize>(self, s: S) {
        s.vectorize(|| {
            // SAFETY: the caller guarantees operands and sums.
            unsafe {
                let mut sums = [[[s.splat(0.0); NV]; MR]; G];
                let (mut a, mut b) = (self.a, self.b);
                for _ in 0..self.depth {
                    for (g, sums) in sums.iter_mut().enumerate() {
                        let panel = b.wrapping_add(g * self.panel);
                        let mut vectors = [s.splat(0.0); NV];
                        for (n, vector) in vectors.iter_mut().enumerate() {
                            prefetch(panel.wrapping_add(GROUP_AHEAD * nr::<S>() + n * S::LANES));
                            *vector = s.load(panel.add(n * S::LANES));
                        }
                        for (m, sums) in sums.iter_mut().enumerate() {
                            let broadcast = s.splat(*a.add(m * self.stride));
                            for (sum, &vector) in sums.iter_mut().zip(&vectors) {
                                *sum = s.fma(broadcast, vector, *sum);
                            }
                        }
                    }
                    a = a.add(1);
                    b = b.add(nr::<S>());
                }
                for (g, sums) in sums.iter().enumerate() {
                    for (m, sums) in sums.iter().enumerate() {
                        for (n, &sum) in sums.iter().enumerate() {
                            let to = self.to.add((g * MR + m) * nr::<S>() + n * S::LANES);
                            s.store(
                                to,
                                if self.is_first { sum } else { s.add(sum, s.load(to.cast_const())) },
                            );
                        }
                    }
                }
            }
        });
    }
}
