//! Packing: transposes rows of any float type into f32 panels.

use std::ops::Range;

use crate::simd::{Float, MAX_LANES, Simd, Span, Work, prefetch, vectors};

/// Prefetch distance in elements of a row. Rows may be pages apart, which defeats the hardware prefetcher.
const AHEAD: usize = 64;

/// Packs steps `depth` of `count` rows into panels of `wide` rows, transposed. A missing row (`None`) is
/// packed as 0.
///
/// # Safety
/// `count * depth.len()` elements are writable, every row covers `depth`, and `count` is a multiple of
/// `wide`.
#[inline(never)]
pub(crate) unsafe fn transpose_rows<'r, S: Simd, T: Float>(
    s: S,
    count: usize,
    wide: usize,
    depth: Range<usize>,
    row: impl Fn(usize) -> Option<&'r [T]>,
    to: *mut f32,
) {
    s.perform(Transpose { s, count, wide, depth, row, to });
}

struct Transpose<S, F> {
    s: S,
    count: usize,
    wide: usize,
    depth: Range<usize>,
    row: F,
    to: *mut f32,
}

impl<'r, S: Simd, T: Float, F: Fn(usize) -> Option<&'r [T]>> Work for Transpose<S, F> {
    #[inline(always)]
    fn perform(self) {
        let Transpose { s, count, wide, depth, row, to } = self;
        let mut block = Square([0.0; SQUARE]);
        let block = block.0.as_mut_ptr();
        for panel in (0..count).step_by(wide) {
            for first in (0..wide).step_by(S::LANES) {
                let lanes = S::LANES.min(wide - first);
                // Looked up once: locating a row is more expensive than loading a vector of it.
                let mut rows = [None; MAX_LANES];
                for (lane, found) in rows[..lanes].iter_mut().enumerate() {
                    *found = row(panel + first + lane).map(|row| row.as_ptr().wrapping_add(depth.start));
                }
                for step in (0..depth.len()).step_by(S::LANES) {
                    let steps = S::LANES.min(depth.len() - step);
                    for (lane, row) in rows[..lanes].iter().enumerate() {
                        // SAFETY: the caller guarantees the rows; a block has LANES rows of LANES elements.
                        unsafe {
                            let to = block.add(lane * S::LANES);
                            match row {
                                Some(row) => {
                                    let from = row.add(step);
                                    prefetch(from.wrapping_add(AHEAD));
                                    vectors!(S, steps, |span| {
                                        s.store(to.add(span.at()), T::load(s, from, span));
                                    });
                                }
                                None => s.store(to, s.splat(0.0)),
                            }
                        }
                    }
                    // SAFETY: the panel has `wide` elements per step; blocks at an edge are copied only as
                    // far as they are valid.
                    unsafe {
                        let to = to.add(panel * depth.len() + step * wide + first);
                        if lanes == S::LANES && steps == S::LANES {
                            s.transpose(block, to, wide);
                        } else {
                            let mut turned = Square([0.0; SQUARE]);
                            let turned = turned.0.as_mut_ptr();
                            s.transpose(block, turned, S::LANES);
                            for step in 0..steps {
                                let from = turned.add(step * S::LANES);
                                std::ptr::copy_nonoverlapping(from, to.add(step * wide), lanes);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Elements of the largest transpose block: MAX_LANES x MAX_LANES.
const SQUARE: usize = MAX_LANES * MAX_LANES;

#[repr(align(64))]
struct Square([f32; SQUARE]);
