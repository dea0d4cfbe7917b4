//! A few rows times many: every row of the right factor is read once, straight from memory, which is the limit.

use crate::rows::Rows;
use crate::simd::{Float, Simd, vectors};

/// Most rows of the left factor that are worth it.
pub(crate) const FEW: usize = 8;

/// The inner products of every row of the left factor with some rows of the right one: `take(row, column, sum)`.
///
/// # Safety
/// All rows have `depth` numbers.
pub(crate) unsafe fn dots<S: Simd, A: Float, B: Float>(
    s: S,
    left: &[&[A]],
    right: &[&[B]],
    depth: usize,
    take: &mut dyn FnMut(usize, usize, f32),
) {
    let wide = if S::LANES >= 16 { 4 } else { 2 };
    let mut column = 0;
    while column < right.len() {
        let columns = wide.min(right.len() - column);
        let mut row = 0;
        while row < left.len() {
            let rows = (left.len() - row).min(4);
            // SAFETY: the caller vouches for the lengths.
            unsafe {
                match (rows, columns) {
                    (1, 4) => tile::<S, A, B, 1, 4>(s, left, right, row, column, depth, take),
                    (2, 4) => tile::<S, A, B, 2, 4>(s, left, right, row, column, depth, take),
                    (3, 4) => tile::<S, A, B, 3, 4>(s, left, right, row, column, depth, take),
                    (4, 4) => tile::<S, A, B, 4, 4>(s, left, right, row, column, depth, take),
                    (1, 2) => tile::<S, A, B, 1, 2>(s, left, right, row, column, depth, take),
                    (2, 2) => tile::<S, A, B, 2, 2>(s, left, right, row, column, depth, take),
                    (3, 2) => tile::<S, A, B, 3, 2>(s, left, right, row, column, depth, take),
                    (4, 2) => tile::<S, A, B, 4, 2>(s, left, right, row, column, depth, take),
                    _ => {
                        for row in row..row + rows {
                            for column in column..column + columns {
                                tile::<S, A, B, 1, 1>(s, left, right, row, column, depth, take);
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

/// A function of its own for each size: a body with all of them would be too large to be inlined into where the instructions are.
#[inline(never)]
unsafe fn tile<S: Simd, A: Float, B: Float, const R: usize, const N: usize>(
    s: S,
    left: &[&[A]],
    right: &[&[B]],
    row: usize,
    column: usize,
    depth: usize,
    take: &mut dyn FnMut(usize, usize, f32),
) {
    let mut a = [std::ptr::null::<A>(); R];
    let mut b = [std::ptr::null::<B>(); N];
    a.iter_mut().zip(&left[row..]).for_each(|(to, from)| *to = from.as_ptr());
    b.iter_mut().zip(&right[column..]).for_each(|(to, from)| *to = from.as_ptr());
    let mut results = [[0.0f32; N]; R];
    s.vectorize(|| {
        let mut sums = [[s.splat(0.0); N]; R];
        vectors!(S, depth, |span| {
            // SAFETY: the caller vouches for the lengths.
            unsafe {
                let mut values = [s.splat(0.0); N];
                for (value, &b) in values.iter_mut().zip(&b) {
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

/// Up to `N` rows as slices, from one on.
pub(crate) fn gather<'r, T: Float, const N: usize>(
    rows: &Rows<'r, T>,
    first: usize,
    count: usize,
) -> [&'r [T]; N] {
    let mut gathered: [&[T]; N] = [&[]; N];
    for (place, gathered) in gathered.iter_mut().enumerate().take(count) {
        *gathered = rows.row(first + place);
    }
    gathered
}

/// Takes sums again that are not finite: they may only have overflowed on their way. `widely` has the one at a place in f64.
pub(crate) fn settle<S: Simd>(s: S, sums: &mut [f32], widely: impl Fn(usize) -> f64) {
    if all_finite(s, sums) {
        return;
    }
    for (place, sum) in sums.iter_mut().enumerate() {
        if !sum.is_finite() {
            *sum = widely(place) as f32;
        }
    }
}

#[inline(never)]
fn all_finite<S: Simd>(s: S, sums: &[f32]) -> bool {
    s.vectorize(|| {
        let mut nothing = s.splat(0.0);
        vectors!(S, sums.len(), |span| {
            // SAFETY: there are so many sums.
            let sum = unsafe { <f32 as Float>::load(s, sums.as_ptr(), span) };
            nothing = s.fma(sum, s.splat(0.0), nothing);
        });
        // 0 times what is not finite is NaN.
        s.sum(nothing) == 0.0
    })
}

/// An inner product in f64, for one that f32 cannot hold.
#[cold]
#[inline(never)]
pub(crate) fn dot_widely<A: Float, B: Float>(a: &[A], b: &[B]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32())).sum()
}
