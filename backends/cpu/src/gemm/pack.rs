//! Rows of any float type as the factors of a product.

use std::ops::Range;

use crate::simd::{Float, MOST_LANES, Simd, Span, prefetch, vectors};

/// Numbers of a row that are asked for before they are needed: rows are pages apart, where processors do not guess what comes next.
const AHEAD: usize = 64;

/// Transposes steps `depth` of `count` rows into panels of `wide` rows. A row that is not there is 0.
///
/// # Safety
/// `count * depth.len()` numbers are writable, every row has the steps, and `count` is a multiple of `wide`.
#[inline(never)]
pub(crate) unsafe fn transpose_rows<'r, S: Simd, T: Float>(
    s: S,
    count: usize,
    wide: usize,
    depth: Range<usize>,
    row: impl Fn(usize) -> Option<&'r [T]>,
    to: *mut f32,
) {
    s.vectorize(|| {
        let mut block = Square([0.0; SQUARE]);
        let block = block.0.as_mut_ptr();
        for panel in (0..count).step_by(wide) {
            for first in (0..wide).step_by(S::LANES) {
                let lanes = S::LANES.min(wide - first);
                // Finding a row takes longer than a step of it.
                let mut rows = [None; MOST_LANES];
                for (lane, found) in rows[..lanes].iter_mut().enumerate() {
                    *found = row(panel + first + lane).map(|row| row.as_ptr().wrapping_add(depth.start));
                }
                for step in (0..depth.len()).step_by(S::LANES) {
                    let steps = S::LANES.min(depth.len() - step);
                    for (lane, row) in rows[..lanes].iter().enumerate() {
                        // SAFETY: the caller vouches for the rows; a block has LANES rows of LANES numbers.
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
                    // SAFETY: the panel has `wide` numbers for each of its steps; of a block at an edge fewer are written.
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
    });
}

/// Numbers of the largest block: as many rows as a vector has lanes, of as many numbers.
const SQUARE: usize = MOST_LANES * MOST_LANES;

#[repr(align(64))]
struct Square([f32; SQUARE]);
