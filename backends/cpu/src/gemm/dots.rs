//! Skinny GEMM (few rows of A): dot products of rows of A with rows of B. B is read once, unpacked; the loop
//! is bound by memory bandwidth.

use crate::rows::Rows;
use crate::simd::{Float, Simd, Span, prefetch_l2, vectors};

/// Maximum number of rows of A for which this path is faster than the blocked GEMM.
pub(crate) const MAX_SKINNY_ROWS: usize = 8;

/// Dot products of every row of A with every row of B: calls `take(row, column, sum)`.
///
/// # Safety
/// All rows have `depth` elements.
pub(crate) unsafe fn dots<S: Simd, A: Float, B: Float>(
    s: S,
    left: &[&[A]],
    right: &[&[B]],
    depth: usize,
    take: &mut dyn FnMut(usize, usize, f32),
) {
    // SAFETY: the caller guarantees the lengths.
    unsafe { dots_before(s, left, right, &[], depth, take) }
}

/// As [`dots`]; also prefetches `next`, the rows of B that the caller needs afterwards. Otherwise the reads of a group of rows wait
/// for the products of the group before it.
///
/// # Safety
/// As [`dots`].
pub(crate) unsafe fn dots_before<S: Simd, A: Float, B: Float>(
    s: S,
    left: &[&[A]],
    right: &[&[B]],
    next: &[&[B]],
    depth: usize,
    take: &mut dyn FnMut(usize, usize, f32),
) {
    let wide = const { max_columns::<S>() };
    let passes = left.len().div_ceil(TILE_ROWS);
    let mut column = 0;
    while column < right.len() {
        let columns = wide.min(right.len() - column);
        let after = |index: usize| {
            let index = column + columns + index;
            let row = right.get(index).or_else(|| next.get(index - right.len()));
            row.filter(|row| !row.is_empty()).map(|row| row.as_ptr())
        };
        let mut row = 0;
        while row < left.len() {
            let rows = (left.len() - row).min(TILE_ROWS);
            let ahead = std::array::from_fn(|index| {
                // Each pass over the rows prefetches its part.
                let mine = index % passes == row / TILE_ROWS;
                mine.then(|| after(index)).flatten()
            });
            let at = Tile { s, left, right, ahead, row, column, depth };
            // SAFETY: the caller guarantees the lengths.
            unsafe {
                match columns {
                    4 if const { max_columns::<S>() == 4 } => at.rows::<4>(rows, take),
                    2 => at.rows::<2>(rows, take),
                    _ => {
                        for row in row..row + rows {
                            for column in column..column + columns {
                                Tile { row, column, ..at }.multiply::<1, 1>(take);
                            }
                        }
                    }
                }
            }
            row += rows;
        }
        column += columns;
    }
}

/// Maximum rows of a register tile.
const TILE_ROWS: usize = 4;

/// Maximum columns of a register tile.
const TILE_COLUMNS: usize = 4;

/// Maximum columns of a register tile of an instruction set. A constant, so that no code is created for tiles that it does not use.
const fn max_columns<S: Simd>() -> usize {
    if S::LANES >= 16 { TILE_COLUMNS } else { 2 }
}

/// Rows of A and of B, from `row` and `column` on.
#[derive(Clone, Copy)]
struct Tile<'t, 'r, S, A, B> {
    s: S,
    left: &'t [&'r [A]],
    right: &'t [&'r [B]],
    /// What is prefetched.
    ahead: [Option<*const B>; TILE_COLUMNS],
    row: usize,
    column: usize,
    depth: usize,
}

impl<S: Simd, A: Float, B: Float> Tile<'_, '_, S, A, B> {
    /// `rows` rows of A, at most [`TILE_ROWS`], by `N` rows of B.
    ///
    /// # Safety
    /// As [`Tile::multiply`].
    unsafe fn rows<const N: usize>(self, rows: usize, take: &mut dyn FnMut(usize, usize, f32)) {
        // SAFETY: the caller guarantees the rows.
        unsafe {
            match rows {
                1 => self.multiply::<1, N>(take),
                2 => self.multiply::<2, N>(take),
                3 => self.multiply::<3, N>(take),
                _ => self.multiply::<TILE_ROWS, N>(take),
            }
        }
    }

    /// Register tile of `R` rows of A by `N` rows of B. Not inlined: one function per tile size keeps each body
    /// small enough to be inlined into `Simd::vectorize`, where the target features are enabled.
    ///
    /// # Safety
    /// As [`dots`], and the rows exist.
    #[inline(never)]
    unsafe fn multiply<const R: usize, const N: usize>(self, take: &mut dyn FnMut(usize, usize, f32)) {
        let Tile { s, left, right, row, column, depth, .. } = self;
        let mut a = [std::ptr::null::<A>(); R];
        let mut b = [std::ptr::null::<B>(); N];
        a.iter_mut().zip(&left[row..]).for_each(|(to, from)| *to = from.as_ptr());
        b.iter_mut().zip(&right[column..]).for_each(|(to, from)| *to = from.as_ptr());
        // Lines of the row itself are there already: prefetching them again costs little.
        let ahead: [*const B; N] = std::array::from_fn(|index| self.ahead[index].unwrap_or(b[index]));
        let mut results = [[0.0f32; N]; R];
        s.vectorize(|| {
            let mut sums = [[s.splat(0.0); N]; R];
            vectors!(S, depth, |span| {
                // SAFETY: the caller guarantees the lengths.
                unsafe {
                    let mut values = [s.splat(0.0); N];
                    for ((value, &b), ahead) in values.iter_mut().zip(&b).zip(&ahead) {
                        prefetch_l2(ahead.wrapping_add(span.at()));
                        *value = B::load(s, b, span);
                    }
                    for (sums, &a) in sums.iter_mut().zip(&a) {
                        let factor = A::load(s, a, span);
                        for (sum, &value) in sums.iter_mut().zip(&values) {
                            *sum = s.fma(factor, value, *sum);
                        }
                    }
                }
            });
            for (results, sums) in results.iter_mut().zip(&sums) {
                for (result, &sum) in results.iter_mut().zip(sums) {
                    *result = s.sum(sum);
                }
            }
        });
        for (m, results) in results.iter().enumerate() {
            for (n, &result) in results.iter().enumerate() {
                take(row + m, column + n, result);
            }
        }
    }
}

/// Up to `N` rows as slices, starting with row `first`.
pub(crate) fn gather<'r, T: Float, const N: usize>(
    rows: &Rows<'r, T>,
    first: usize,
    count: usize,
) -> [&'r [T]; N] {
    let mut gathered: [&[T]; N] = [&[]; N];
    for (index, gathered) in gathered.iter_mut().enumerate().take(count) {
        *gathered = rows.row(first + index);
    }
    gathered
}

/// Recomputes sums that are not finite, because an intermediate sum may have overflowed in f32.
/// `exact(index)` returns the sum in f64.
pub(crate) fn recompute_non_finite<S: Simd>(s: S, sums: &mut [f32], exact: impl Fn(usize) -> f64) {
    if all_finite(s, sums) {
        return;
    }
    for (index, sum) in sums.iter_mut().enumerate() {
        if !sum.is_finite() {
            *sum = exact(index) as f32;
        }
    }
}

/// Like [`recompute_non_finite`]; a sum that was recomputed may exceed f32 before the bias is added, but not after. Whether the bias
/// was added, which it is only if a sum was not finite.
pub(crate) fn recompute_with_bias<S: Simd>(
    s: S,
    sums: &mut [f32],
    bias: impl Fn(usize) -> f32,
    exact: impl Fn(usize) -> f64,
) -> bool {
    if all_finite(s, sums) {
        return false;
    }
    for (index, sum) in sums.iter_mut().enumerate() {
        let bias = bias(index);
        *sum = if sum.is_finite() { *sum + bias } else { (exact(index) + f64::from(bias)) as f32 };
    }
    true
}

/// As [`recompute_with_bias`] with an optional bias of any float type; returns the bias that is still to be added.
pub(crate) fn recompute_with_optional_bias<'a, S: Simd, T: Float>(
    s: S,
    sums: &mut [f32],
    bias: Option<&'a [T]>,
    exact: impl Fn(usize) -> f64,
) -> Option<&'a [T]> {
    let done = recompute_with_bias(s, sums, |index| bias.map_or(0.0, |bias| bias[index].to_f32()), exact);
    if done { None } else { bias }
}

/// Whether no sum is NaN or infinite.
#[inline(never)]
pub(crate) fn all_finite<S: Simd>(s: S, sums: &[f32]) -> bool {
    s.vectorize(|| {
        let mut nothing = s.splat(0.0);
        vectors!(S, sums.len(), |span| {
            // SAFETY: `span` is within `sums`.
            let sum = unsafe { <f32 as Float>::load(s, sums.as_ptr(), span) };
            nothing = s.fma(sum, s.splat(0.0), nothing);
        });
        // 0 * x is NaN for every non-finite x.
        s.sum(nothing) == 0.0
    })
}

/// Dot product in f64, for sums that overflow f32.
#[cold]
#[inline(never)]
pub(crate) fn dot_f64<A: Float, B: Float>(a: &[A], b: &[B]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32())).sum()
}
