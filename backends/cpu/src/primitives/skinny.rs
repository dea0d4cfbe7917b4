//! Products with few rows: bound by reading the right matrix once, which is therefore not packed.

use super::matmul::{Matrix, Product};
use crate::gemm::dots::{MAX_SKINNY_ROWS, dots};
use crate::rows::for_each_range;
use crate::simd::{Float, FullVector, Simd, Span, Tail};

/// Columns of a task if the right matrix is dense along them.
const COLUMNS: usize = 256;

/// Columns of a task if the right matrix is dense along K, and those whose dot products are computed at once.
const DOT_COLUMNS: usize = 64;
const DOTS: usize = 8;

/// Runs a product of at most [`MAX_SKINNY_ROWS`] rows. The workspace holds the left rows as f32.
pub(super) fn run<S: Simd, T: Float>(product: &Product<S, T>, workspace: &mut [u8]) {
    let [_, n, k] = product.sizes;
    let dense_k = product.b.steps[0] == 1 || k <= 1;
    let left = Left::new(product, workspace);
    let bytes = k * size_of::<T>();
    if dense_k {
        for_each_range(n.div_ceil(DOT_COLUMNS), DOT_COLUMNS * bytes, &|tasks| {
            for task in tasks {
                let columns = task * DOT_COLUMNS..n.min((task + 1) * DOT_COLUMNS);
                dot_columns(product, &left, columns);
            }
        });
    } else if product.b.steps[1] == 1 || n == 1 {
        for_each_range(n.div_ceil(COLUMNS), COLUMNS * bytes, &|tasks| {
            for task in tasks {
                let columns = task * COLUMNS..n.min((task + 1) * COLUMNS);
                sum_columns(product, &left, columns);
            }
        });
    } else {
        for_each_range(n, bytes, &|columns| {
            for column in columns {
                strided_column(product, &left, column);
            }
        });
    }
}

/// Rows of the left matrix as dense f32.
pub(super) struct Left {
    rows: [*const f32; MAX_SKINNY_ROWS],
    m: usize,
    k: usize,
}

// SAFETY: it is only read.
unsafe impl Sync for Left {}

impl Left {
    fn new<S: Simd, T: Float>(product: &Product<S, T>, workspace: &mut [u8]) -> Left {
        let [m, _, k] = product.sizes;
        let mut left = Left { rows: [std::ptr::null(); MAX_SKINNY_ROWS], m, k };
        let direct = T::DTYPE == lz_core::DType::F32 && (product.a.steps[1] == 1 || k <= 1);
        let step = k.next_multiple_of(32);
        assert!(
            direct || workspace.len() >= m * step * size_of::<f32>(),
            "workspace too small for the left rows"
        );
        let memory = workspace.as_mut_ptr().cast::<f32>();
        for (row, to) in left.rows[..m].iter_mut().enumerate() {
            let from = product.a.at(row, 0);
            if direct {
                *to = from.cast_const().cast();
                continue;
            }
            let copy = memory.wrapping_add(row * step);
            for index in 0..k {
                // SAFETY: the row has `k` elements, and the workspace space for them.
                unsafe { *copy.add(index) = (*product.a.at(row, index)).to_f32() };
            }
            *to = copy;
        }
        left
    }

    fn row(&self, row: usize) -> &[f32] {
        // SAFETY: every row has `k` elements.
        unsafe { std::slice::from_raw_parts(self.rows[row], self.k) }
    }
}

/// Columns that are dense along K: dot products.
fn dot_columns<S: Simd, T: Float>(product: &Product<S, T>, left: &Left, columns: std::ops::Range<usize>) {
    let mut rows: [&[f32]; MAX_SKINNY_ROWS] = [&[]; MAX_SKINNY_ROWS];
    for (row, slot) in rows[..left.m].iter_mut().enumerate() {
        *slot = left.row(row);
    }
    let mut sums = [[0.0f32; DOT_COLUMNS]; MAX_SKINNY_ROWS];
    for first in columns.clone().step_by(DOTS) {
        let count = DOTS.min(columns.end - first);
        let mut right: [&[T]; DOTS] = [&[]; DOTS];
        for (index, slot) in right[..count].iter_mut().enumerate() {
            let column = product.b.at(0, first + index).cast_const();
            // SAFETY: a column has `k` elements, which are dense.
            *slot = unsafe { std::slice::from_raw_parts(column, left.k) };
        }
        let at = first - columns.start;
        // SAFETY: all rows have `k` elements.
        unsafe {
            dots(product.s, &rows[..left.m], &right[..count], left.k, &mut |m, n, sum| sums[m][at + n] = sum);
        }
    }
    for (row, sums) in sums[..left.m].iter().enumerate() {
        product.write(row, columns.clone(), sums);
    }
}

/// Columns that are next to each other: a row of the right matrix at a time, sums in registers.
fn sum_columns<S: Simd, T: Float>(product: &Product<S, T>, left: &Left, columns: std::ops::Range<usize>) {
    let mut sums = [[0.0f32; COLUMNS]; MAX_SKINNY_ROWS];
    let (mut row, count) = (0, columns.len());
    while row < left.m {
        let b = Matrix { start: product.b.at(0, columns.start), steps: product.b.steps };
        let tile = Tile { b, rows: &left.rows[row..], k: left.k, count };
        let to = &mut sums[row..];
        // SAFETY: the rows and columns are inside both matrices.
        unsafe {
            match left.m - row {
                1 => tile.run::<S, 1, 8>(product.s, to),
                2 | 3 => tile.run::<S, 2, 4>(product.s, to),
                4..8 => tile.run::<S, 4, 2>(product.s, to),
                _ => tile.run::<S, 8, 2>(product.s, to),
            }
        }
        row += match left.m - row {
            1 => 1,
            2 | 3 => 2,
            4..8 => 4,
            _ => 8,
        };
    }
    for (row, sums) in sums[..left.m].iter().enumerate() {
        product.write(row, columns.clone(), sums);
    }
}

struct Tile<'l, T> {
    b: Matrix<T>,
    rows: &'l [*const f32],
    k: usize,
    count: usize,
}

impl<T: Float> Tile<'_, T> {
    /// Sums of `R` rows, `NV` vectors of columns at a time.
    unsafe fn run<S: Simd, const R: usize, const NV: usize>(&self, s: S, sums: &mut [[f32; COLUMNS]]) {
        let mut at = 0;
        // SAFETY: the caller guarantees rows and columns.
        unsafe {
            while at + NV * S::LANES <= self.count {
                self.vectors::<S, R, NV>(s, at, sums);
                at += NV * S::LANES;
            }
            while at + S::LANES <= self.count {
                self.vectors::<S, R, 1>(s, at, sums);
                at += S::LANES;
            }
            if at < self.count {
                self.span::<S, R>(s, Tail(at, self.count - at), sums);
            }
        }
    }

    #[inline(never)]
    unsafe fn vectors<S: Simd, const R: usize, const NV: usize>(
        &self,
        s: S,
        at: usize,
        sums: &mut [[f32; COLUMNS]],
    ) {
        s.vectorize(|| {
            let mut totals = [[s.splat(0.0); NV]; R];
            for step in 0..self.k {
                // SAFETY: the caller guarantees rows and columns.
                unsafe {
                    let row = self.b.at(step, 0).cast_const();
                    let mut values = [s.splat(0.0); NV];
                    for (v, value) in values.iter_mut().enumerate() {
                        *value = T::load(s, row, FullVector(at + v * S::LANES));
                    }
                    for (r, totals) in totals.iter_mut().enumerate() {
                        let factor = s.splat(*self.rows[r].add(step));
                        for (total, &value) in totals.iter_mut().zip(&values) {
                            *total = s.fma(factor, value, *total);
                        }
                    }
                }
            }
            for (totals, sums) in totals.iter().zip(sums) {
                for (v, &total) in totals.iter().enumerate() {
                    // SAFETY: the block has COLUMNS elements, and these are inside it.
                    unsafe { s.store(sums.as_mut_ptr().add(at + v * S::LANES), total) };
                }
            }
        });
    }

    #[inline(never)]
    unsafe fn span<S: Simd, const R: usize>(&self, s: S, span: Tail, sums: &mut [[f32; COLUMNS]]) {
        s.vectorize(|| {
            let mut totals = [s.splat(0.0); R];
            for step in 0..self.k {
                // SAFETY: the caller guarantees rows and columns.
                unsafe {
                    let value = T::load(s, self.b.at(step, 0).cast_const(), span);
                    for (r, total) in totals.iter_mut().enumerate() {
                        *total = s.fma(s.splat(*self.rows[r].add(step)), value, *total);
                    }
                }
            }
            for (&total, sums) in totals.iter().zip(sums) {
                // SAFETY: the block has COLUMNS elements, and these are inside it.
                unsafe { s.store_partial(sums.as_mut_ptr().add(span.at()), total, span.1) };
            }
        });
    }
}

/// One column of a matrix that is dense in no dimension.
fn strided_column<S: Simd, T: Float>(product: &Product<S, T>, left: &Left, column: usize) {
    for row in 0..left.m {
        let mut sum = 0.0f32;
        for (step, factor) in left.row(row).iter().enumerate() {
            // SAFETY: the element is inside the matrix.
            sum = factor.mul_add(unsafe { (*product.b.at(step, column)).to_f32() }, sum);
        }
        product.write(row, column..column + 1, &[sum]);
    }
}
