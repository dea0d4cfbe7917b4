//! Rows of any float type as the factors of a product.

use std::ops::Range;

use super::product::{DEPTH, panel};
use crate::rows::Rows;
use crate::simd::{Float, Simd, Span, prefetch, prefetch_all, vectors};

/// Copies steps `depth` of rows to `to`, [`DEPTH`] apart. A row that is not there is 0.
///
/// # Safety
/// `rows * DEPTH` numbers are writable, and every row has the steps.
#[inline(never)]
pub(crate) unsafe fn copy_rows<'r, S: Simd, T: Float>(
    s: S,
    rows: usize,
    depth: Range<usize>,
    row: impl Fn(usize) -> Option<&'r [T]>,
    to: *mut f32,
) {
    s.vectorize(|| {
        for place in 0..rows {
            // SAFETY: the caller vouches for both sides. A whole vector at the end of a row stays inside, because DEPTH is a
            // multiple of every vector's lanes.
            unsafe {
                let to = to.add(place * DEPTH);
                match row(place) {
                    Some(row) => {
                        let from = row.as_ptr().add(depth.start);
                        vectors!(S, depth.len(), |span| {
                            s.store(to.add(span.at()), T::load(s, from, span));
                        });
                    }
                    None => std::ptr::write_bytes(to, 0, DEPTH),
                }
            }
        }
    });
}

/// Asks the memory for steps `depth` of rows.
pub(crate) fn ask_for_rows<T: Float>(rows: &Rows<'_, T>, range: Range<usize>, depth: Range<usize>) {
    for row in range {
        prefetch_all(rows.row(row).as_ptr().wrapping_add(depth.start), depth.len() * size_of::<T>());
    }
}

/// Transposes steps `depth` of `count` rows into panels. A row that is not there is 0.
///
/// # Safety
/// `count * depth.len()` numbers are writable, every row has the steps, and `count` is a multiple of [`panel`].
#[inline(never)]
pub(crate) unsafe fn transpose_rows<'r, S: Simd, T: Float>(
    s: S,
    count: usize,
    depth: Range<usize>,
    row: impl Fn(usize) -> Option<&'r [T]>,
    to: *mut f32,
) {
    #[repr(align(64))]
    struct Block([f32; 256]);
    let wide = panel::<S>();
    s.vectorize(|| {
        let mut block = Block([0.0; 256]);
        let block = block.0.as_mut_ptr();
        let mut first = 0;
        while first < count {
            let panel = first / wide * wide;
            let mut step = 0;
            while step < depth.len() {
                let steps = S::LANES.min(depth.len() - step);
                for lane in 0..S::LANES {
                    // SAFETY: the caller vouches for the rows; a block has LANES rows of LANES numbers.
                    unsafe {
                        let to = block.add(lane * S::LANES);
                        match row(first + lane) {
                            Some(row) => {
                                let from = row.as_ptr().add(depth.start + step);
                                // Rows are pages apart, where processors do not guess what comes next.
                                prefetch(from.wrapping_add(DEPTH));
                                vectors!(S, steps, |span| {
                                    s.store(to.add(span.at()), T::load(s, from, span));
                                });
                            }
                            None => s.store(to, s.splat(0.0)),
                        }
                    }
                }
                // SAFETY: the panel has `depth` steps; a block at its end is written by fewer.
                unsafe {
                    let to = to.add(panel * depth.len() + step * wide + (first - panel));
                    if steps == S::LANES {
                        s.transpose(block, to, wide);
                    } else {
                        for step in 0..steps {
                            for lane in 0..S::LANES {
                                *to.add(step * wide + lane) = *block.add(lane * S::LANES + step);
                            }
                        }
                    }
                }
                step += S::LANES;
            }
            first += S::LANES;
        }
    });
}
