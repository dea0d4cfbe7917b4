//! A blocked matrix product: whoever has the factors packs them, whoever wants the result stores it.
//!
//! The left factor is packed once, into the kernel's workspace, and then each task computes one block of columns: its right factor
//! is packed into panels that stay in the second-level cache for all rows, and its sums stay beside them until the last part of the
//! depth is added. Nothing is allocated, and what is added to a sum in which order does not depend on the number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::dots::FEW;
use super::tasks::{for_each, pieces};
use super::{Left, Right, for_each_rows, multiply_ahead};
use crate::simd::{Simd, prefetch};

/// Most steps of the sum that are packed at once: sums are loaded and stored once for so many.
const DEPTH: usize = 384;

/// Most rows of a block; a multiple of [`EVEN`].
pub(super) const BLOCK_ROWS: usize = 1056;

/// Rows are packed in multiples of this, which is one of the rows of every micro-tile, those of `tiled` among them.
const EVEN: usize = 96;

/// The same for few rows.
const FEW_EVEN: usize = 24;

/// Columns of a block.
pub(crate) const COLUMNS: usize = 96;

/// Products with fewer multiplications stay on the caller's thread.
const WORTH_SHARING: usize = 1 << 19;

/// Steps by which the right factor is asked for before it is needed: it comes from the second-level cache.
const AHEAD: usize = 8;

/// Most rows of a micro-tile.
const MOST_ROWS: usize = 8;

/// Rows of a micro-tile, which are also those of a panel of the left factor.
#[inline(always)]
const fn at_once<S: Simd>() -> usize {
    if S::LANES >= 16 { MOST_ROWS } else { 6 }
}

/// Columns of a panel of the right factor; it divides [`COLUMNS`].
#[inline(always)]
pub(crate) const fn panel<S: Simd>() -> usize {
    vectors::<S>() * S::LANES
}

/// Vectors of a micro-tile: with its rows they fill the registers.
#[inline(always)]
const fn vectors<S: Simd>() -> usize {
    if S::LANES >= 16 { 3 } else { 2 }
}

/// The two factors and the place of the result. Columns come in blocks of [`COLUMNS`].
pub(crate) trait Factors: Sync {
    /// Writes a panel of the left factor: one step of the sum after the other. Rows beyond the last are 0.
    ///
    /// # Safety
    /// `rows.len() * depth.len()` numbers are writable.
    unsafe fn left(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32);

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

/// Rows that are packed at once: about equally many each time, so that none is left with a sliver.
pub(super) fn height(rows: usize) -> usize {
    if rows <= FEW {
        return FEW_EVEN;
    }
    rows.div_ceil(rows.div_ceil(BLOCK_ROWS)).next_multiple_of(EVEN)
}

/// Bytes of workspace for the left factor. Kernels declare the same as
/// `(24 if rows <= 8 else ceil_div(ceil_div(rows, ceil_div(rows, 1056)), 96) * 96) * ceil_div(depth, 32) * 128`.
pub(crate) fn packed_bytes(rows: usize, depth: usize) -> u64 {
    (height(rows) * depth.next_multiple_of(32) * size_of::<f32>()) as u64
}

/// The parts of a depth, as equal as whole vectors and words of integers allow; an empty one if there is no depth.
fn parts(depth: usize) -> impl Iterator<Item = Range<usize>> {
    let length = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).next_multiple_of(16).max(1);
    (0..depth.max(1)).step_by(length).map(move |start| start..depth.min(start + length))
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

/// The left factor of some rows: part after part of the depth, and in each panel after panel.
#[derive(Clone, Copy)]
struct Packed {
    start: *mut f32,
    height: usize,
}

// SAFETY: each panel is written by one task, and read when all are.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

impl Packed {
    /// The panel that begins with a row, counted from the first that is packed.
    fn panel(self, row: usize, part: &Range<usize>) -> *mut f32 {
        self.start.wrapping_add(part.start * self.height + row * part.len())
    }
}

/// Multiplies: so many rows, columns and steps of the sum.
///
/// # Panics
/// When the workspace is smaller than [`packed_bytes`].
pub(crate) fn multiply_all<S: Simd>(
    s: S,
    [rows, columns, depth]: [usize; 3],
    workspace: &mut [u8],
    factors: &dyn Factors,
) {
    assert!(workspace.len() as u64 >= packed_bytes(rows, depth), "room for the left factor");
    let (height, blocks) = (height(rows), columns.div_ceil(COLUMNS));
    let packed = Packed { start: workspace.as_mut_ptr().cast(), height };
    let shared = rows * columns * depth >= WORTH_SHARING;
    for first in (0..rows).step_by(height) {
        let here = first..rows.min(first + height);
        for_each(shared, here.len().div_ceil(at_once::<S>()), |panel| {
            let row = panel * at_once::<S>();
            let rows = first + row..first + row + at_once::<S>();
            for part in parts(depth) {
                let to = packed.panel(row, &part);
                // SAFETY: the workspace has room for every panel, and this task alone writes this one.
                unsafe { factors.left(rows.clone(), part, to) };
            }
        });
        let pieces = pieces(here.len(), blocks);
        let piece = here.len().div_ceil(pieces).next_multiple_of(at_once::<S>());
        for_each(shared, blocks * pieces, |task| {
            let (block, start) = (task / pieces, task % pieces * piece);
            let rows = start..here.len().min(start + piece);
            let columns = COLUMNS.min(columns - block * COLUMNS);
            let job = Block { packed, first, rows, number: block, columns, depth };
            job.multiply(s, factors);
        });
    }
}

/// A block of the result.
struct Block {
    packed: Packed,
    /// The first row that is packed.
    first: usize,
    /// Rows, counted from there.
    rows: Range<usize>,
    /// The number of the block of columns, and how many of them there are.
    number: usize,
    columns: usize,
    depth: usize,
}

impl Block {
    #[inline(never)]
    fn multiply<S: Simd>(self, s: S, factors: &dyn Factors) {
        let mut sums = Numbers::<{ BLOCK_ROWS * COLUMNS }>::new();
        let mut right = Numbers::<{ COLUMNS * DEPTH }>::new();
        let mut strip = Numbers::<{ MOST_ROWS * COLUMNS }>::new();
        let (sums, right, strip) = (sums.start(), right.start(), strip.start());
        for part in parts(self.depth) {
            let last = part.end == self.depth;
            // SAFETY: there is room for a block of the right factor.
            unsafe { factors.right(self.number, part.clone(), right) };
            for row in self.rows.clone().step_by(at_once::<S>()) {
                let count = at_once::<S>().min(self.rows.end - row);
                let place = sums.wrapping_add((row - self.rows.start) * COLUMNS);
                let strips = Strips {
                    left: self.packed.panel(row, &part),
                    right,
                    depth: part.len(),
                    from: (part.start > 0).then_some(place.cast_const()),
                    to: if last { strip } else { place },
                };
                // SAFETY: both factors are packed for this part, and sums have room for the rows of a micro-tile.
                unsafe {
                    strips.multiply(s, count.next_multiple_of(2), self.columns);
                    if last {
                        for place in 0..count {
                            factors.store(self.first + row + place, self.number, strip.add(place * COLUMNS));
                        }
                    }
                }
            }
        }
    }
}

/// A panel of the left factor, a block of the right one, and the rows of the result to which their product is added.
#[derive(Clone, Copy)]
struct Strips {
    left: *const f32,
    right: *const f32,
    depth: usize,
    /// The sums so far, if there are any.
    from: Option<*const f32>,
    to: *mut f32,
}

impl Strips {
    /// # Safety
    /// The factors and the result are there for `count` rows, an even number up to those of a micro-tile.
    unsafe fn multiply<S: Simd>(self, s: S, count: usize, columns: usize) {
        for first in (0..columns).step_by(panel::<S>()) {
            let right = self.right.wrapping_add(first * self.depth);
            let from = self.from.map(|from| from.wrapping_add(first));
            let here = Strips { right, from, to: self.to.wrapping_add(first), ..self };
            let vectors = (columns - first).min(panel::<S>()).div_ceil(S::LANES);
            for_each_rows!(S, count, |row, MR| {
                let here = here.below(row);
                // SAFETY: the caller vouches for the factors and the result.
                unsafe {
                    match vectors {
                        1 => here.tile::<S, MR, 1>(s),
                        2 => here.tile::<S, MR, 2>(s),
                        _ => here.tile::<S, MR, 3>(s),
                    }
                }
            });
        }
    }

    fn below(self, rows: usize) -> Strips {
        let from = self.from.map(|from| from.wrapping_add(rows * COLUMNS));
        Strips { left: self.left.wrapping_add(rows), from, to: self.to.wrapping_add(rows * COLUMNS), ..self }
    }

    /// A function of its own for each size: a body with all of them would be too large to be inlined into where the instructions are.
    #[inline(never)]
    unsafe fn tile<S: Simd, const MR: usize, const NV: usize>(self, s: S) {
        s.vectorize(|| {
            // SAFETY: the caller vouches for the factors and the result.
            unsafe {
                let place = |m: usize, n: usize| m * COLUMNS + n * S::LANES;
                if let Some(from) = self.from {
                    for m in 0..MR {
                        for n in 0..NV {
                            prefetch(from.wrapping_add(place(m, n)));
                        }
                    }
                }
                let left = Left { at: self.left, row: 1, step: at_once::<S>() };
                let right = Right { at: self.right, step: panel::<S>() };
                let zero = [[s.splat(0.0); NV]; MR];
                let mut sums = multiply_ahead::<S, MR, NV, AHEAD>(s, zero, left, right, self.depth);
                if let Some(from) = self.from {
                    for (m, sums) in sums.iter_mut().enumerate() {
                        for (n, sum) in sums.iter_mut().enumerate() {
                            *sum = s.add(*sum, s.load(from.add(place(m, n))));
                        }
                    }
                }
                for (m, sums) in sums.iter().enumerate() {
                    for (n, &sum) in sums.iter().enumerate() {
                        s.store(self.to.add(place(m, n)), sum);
                    }
                }
            }
        });
    }
}
