//! The micro-kernel of every matrix product: a few rows times a few vectors of columns, held in registers.
//!
//! `C[m][n] += A[m][k] * B[k][n]`, where A is read one number at a time (so its strides are free) and B one vector at a time.
//! Nothing here knows attention, layers or element types other than f32.

pub(crate) mod dots;
pub(crate) mod pack;
pub(crate) mod product;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiled;

use crate::simd::Simd;

/// Rows of a whole micro-tile: with [`most_vectors`] columns they fill the registers.
pub(crate) const ROWS: usize = 6;

/// Vectors of a whole micro-tile.
#[inline(always)]
pub(crate) const fn most_vectors<S: Simd>() -> usize {
    if S::LANES >= 16 { 4 } else { 2 }
}

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

/// Runs `$body` for vectors `$first .. $first + $NV` of `$count`, as many at once as the registers hold. `$NV` is a constant.
macro_rules! for_each_panel {
    ($S:ty, $count:expr, |$first:ident, $NV:ident| $body:block) => {{
        let count: usize = $count;
        let mut $first: usize = 0;
        while $first < count {
            match (count - $first).min($crate::gemm::most_vectors::<$S>()) {
                1 => {
                    const $NV: usize = 1;
                    $body
                    $first += 1;
                }
                2 => {
                    const $NV: usize = 2;
                    $body
                    $first += 2;
                }
                3 => {
                    const $NV: usize = 3;
                    $body
                    $first += 3;
                }
                _ => {
                    const $NV: usize = 4;
                    $body
                    $first += 4;
                }
            }
        }
    }};
}
pub(crate) use for_each_panel;

/// Runs `$body` for rows `$first .. $first + $MR` of `$count`, which is even. `$MR` is a constant.
macro_rules! for_each_rows {
    ($count:expr, |$first:ident, $MR:ident| $body:block) => {{
        let count: usize = $count;
        let mut $first: usize = 0;
        while $first < count {
            match count - $first {
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
                _ => {
                    const $MR: usize = $crate::gemm::ROWS;
                    $body
                    $first += $crate::gemm::ROWS;
                }
            }
        }
    }};
}
pub(crate) use for_each_rows;
