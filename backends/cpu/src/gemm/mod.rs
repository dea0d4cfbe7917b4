//! The micro-kernel of every matrix product: a few rows times a few vectors of columns, held in registers.
//!
//! `C[m][n] += A[m][k] * B[k][n]`, where A is read one number at a time (so its strides are free) and B one vector at a time.
//! Nothing here knows attention, layers or element types other than f32.

pub(crate) mod dots;
pub(crate) mod pack;
pub(crate) mod product;
mod tasks;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiled;

use crate::simd::{Simd, prefetch};

/// Rows of a whole micro-tile: with [`VECTORS`] they fill the registers.
#[inline(always)]
pub(crate) const fn rows<S: Simd>() -> usize {
    if S::LANES >= 16 { MOST_ROWS } else { 6 }
}

/// Rows of the largest micro-tile.
pub(crate) const MOST_ROWS: usize = 12;

/// Vectors of a whole micro-tile. More of them and fewer rows would take fewer loads, but a panel so narrow stays in the first-level
/// cache together with what it is multiplied with.
pub(crate) const VECTORS: usize = 2;

/// The left factor: number (m, k) is at `at + m * row + k * step`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub at: *const f32,
    pub row: usize,
    pub step: usize,
}

/// The right factor: vector n of row k is at `at + k * step + n * LANES`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Right {
    pub at: *const f32,
    pub step: usize,
}

/// Adds the product over `depth` to `sums`.
///
/// # Safety
/// Everything that the factors name for `MR` rows, `NV` vectors and `depth` steps is readable.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    sums: [[S::F32; NV]; MR],
    a: Left,
    b: Right,
    depth: usize,
) -> [[S::F32; NV]; MR] {
    // SAFETY: the caller vouches for all that the factors name.
    unsafe { multiply_ahead::<S, MR, NV, 0>(s, sums, a, b, depth) }
}

/// As [`multiply`], and asks for the right factor so many steps before it is needed.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
pub(crate) unsafe fn multiply_ahead<S: Simd, const MR: usize, const NV: usize, const AHEAD: usize>(
    s: S,
    mut sums: [[S::F32; NV]; MR],
    a: Left,
    b: Right,
    depth: usize,
) -> [[S::F32; NV]; MR] {
    let (mut left, mut right) = (a.at, b.at);
    for _ in 0..depth {
        // SAFETY: the caller vouches for all that the factors name.
        unsafe {
            let mut vectors = [s.splat(0.0); NV];
            for (n, vector) in vectors.iter_mut().enumerate() {
                if AHEAD > 0 {
                    prefetch(right.wrapping_add(AHEAD * b.step + n * S::LANES));
                }
                *vector = s.load(right.add(n * S::LANES));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let factor = s.splat(*left.add(m * a.row));
                for (sum, &vector) in sums.iter_mut().zip(&vectors) {
                    *sum = s.fma(factor, vector, *sum);
                }
            }
            left = left.add(a.step);
            right = right.add(b.step);
        }
    }
    sums
}

/// Runs `$body` for vectors `$first .. $first + $NV` of `$count`, as many at once as a micro-tile has. `$NV` is a constant.
macro_rules! for_each_panel {
    ($count:expr, |$first:ident, $NV:ident| $body:block) => {{
        let count: usize = $count;
        let mut $first: usize = 0;
        while $first < count {
            if count - $first == 1 {
                const $NV: usize = 1;
                $body
            } else {
                const $NV: usize = $crate::gemm::VECTORS;
                $body
            }
            $first += $crate::gemm::VECTORS;
        }
    }};
}
pub(crate) use for_each_panel;

/// Runs `$body` for rows `$first .. $first + $MR` of `$count`, which is even. `$MR` is a constant.
macro_rules! for_each_rows {
    ($S:ty, $count:expr, |$first:ident, $MR:ident| $body:block) => {{
        let count: usize = $count;
        let mut $first: usize = 0;
        while $first < count {
            match (count - $first).min($crate::gemm::rows::<$S>()) {
                2 | 3 => {
                    const $MR: usize = 2;
                    $body
                    $first += 2;
                }
                4 | 5 => {
                    const $MR: usize = 4;
                    $body
                    $first += 4;
                }
                6 | 7 => {
                    const $MR: usize = 6;
                    $body
                    $first += 6;
                }
                8..$crate::gemm::MOST_ROWS => {
                    const $MR: usize = 8;
                    $body
                    $first += 8;
                }
                _ => {
                    const $MR: usize = $crate::gemm::MOST_ROWS;
                    $body
                    $first += $crate::gemm::MOST_ROWS;
                }
            }
        }
    }};
}
pub(crate) use for_each_rows;
