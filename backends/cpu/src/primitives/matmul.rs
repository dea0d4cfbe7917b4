//! `primitive.matmul`: blocked GEMM for any strides, skinny products in `skinny`, f64 by plain loops.

use std::ops::Range;

use lz_core::{DType, KernelError, OutArg, Run, TensorView};
use lz_primitives::call::{Call, mismatch, output};

use super::runs::{Operand, Runs};
use super::skinny;
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::{MAX_SKINNY_ROWS, all_finite};
use crate::gemm::pack::transpose_rows;
use crate::rows::for_each_range;
use crate::simd::{Float, Simd, vectors, with_float};

/// Workspace: the packed left matrix, or a few rows of it.
pub(super) const WORKSPACE: &str =
    "min(1056, ceil_div(max(batch * m, 1), 96) * 96) * ceil_div(max(k, 1), 32) * 128";

/// A matrix: element (row, column) is at `start + row * steps[0] + column * steps[1]`, in elements.
#[derive(Debug)]
pub(super) struct Matrix<T> {
    pub start: *mut T,
    pub steps: [isize; 2],
}

impl<T> Clone for Matrix<T> {
    fn clone(&self) -> Matrix<T> {
        *self
    }
}

impl<T> Copy for Matrix<T> {}

impl<T> Matrix<T> {
    #[inline(always)]
    pub fn at(&self, row: usize, column: usize) -> *mut T {
        self.start.wrapping_offset(self.steps[0] * row as isize + self.steps[1] * column as isize)
    }

    pub fn transposed(self) -> Matrix<T> {
        Matrix { start: self.start, steps: [self.steps[1], self.steps[0]] }
    }
}

/// One product: `c = alpha a b + bias`.
pub(super) struct Product<S, T> {
    pub s: S,
    pub a: Matrix<T>,
    pub b: Matrix<T>,
    pub c: Matrix<T>,
    /// M, N, K.
    pub sizes: [usize; 3],
    pub alpha: f32,
    /// Start and stride of the bias.
    pub bias: Option<(*const T, isize)>,
    /// Whether the bias belongs to rows instead of columns.
    pub bias_of_rows: bool,
}

// SAFETY: tasks write disjoint elements of `c`, and only read the others.
unsafe impl<S: Sync, T> Sync for Product<S, T> {}

/// `primitive.matmul`.
pub(super) fn matmul<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (a, b, bias, alpha) = (call.tensor(0)?, call.tensor(1)?, call.optional(2)?, call.float(3)? as f32);
    let output = output(outputs, 0)?;
    let c = output.as_view();
    let batch = Batch::new(a, b, &c)?;
    let [m, n, k] = batch.sizes;
    if a.dtype() != b.dtype() || a.dtype() != c.dtype() {
        return Err(mismatch("a, b and the output must have the same dtype"));
    }
    if bias.is_some_and(|bias| bias.shape() != [c.shape()[c.rank() - 1]] || bias.dtype() != c.dtype()) {
        return Err(mismatch("the bias must have one element per column, of the dtype of a"));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    let shape = &a.shape()[..batch.rank];
    let operands =
        [Operand::of(&c), Operand::of(a), Operand::of(b)].map(|operand| operand.leading(batch.rank));
    let runs = Runs::new(shape, operands);
    let steps = batch.steps;
    if a.dtype() == DType::F64 {
        let bias = bias.map(|bias| (bias.as_ptr().cast::<f64>(), bias.strides()[0] as isize));
        runs.for_each_serial(|[c, a, b]| {
            product_f64([m, n, k], [c, a, b].map(<*mut u8>::cast), steps, bias, f64::from(alpha));
        });
        return Ok(());
    }
    let workspace = run.workspace(workspace_bytes(m, n, k))?;
    with_float!(Some(a.dtype()), T => {
        let bias = bias.map(|bias| (bias.as_ptr().cast::<T>(), bias.strides()[0] as isize));
        runs.for_each_serial(|[c, a, b]| {
            let product = Product::<S, T> {
                s,
                a: Matrix { start: a.cast(), steps: steps[1] },
                b: Matrix { start: b.cast(), steps: steps[2] },
                c: Matrix { start: c.cast(), steps: steps[0] },
                sizes: [m, n, k],
                alpha,
                bias,
                bias_of_rows: false,
            };
            product.run(workspace);
        });
        Ok(())
    })
}

/// Bytes of workspace of one product; at most [`WORKSPACE`].
fn workspace_bytes(m: usize, n: usize, k: usize) -> u64 {
    let skinny = (MAX_SKINNY_ROWS * k.next_multiple_of(32) * size_of::<f32>()) as u64;
    if m <= MAX_SKINNY_ROWS || n <= MAX_SKINNY_ROWS { skinny } else { packed_bytes(m, k) }
}

/// The leading dimensions that remain after the last of them were joined with the rows.
struct Batch {
    rank: usize,
    /// M, N, K.
    sizes: [usize; 3],
    /// Row and column strides of c, a and b, in elements.
    steps: [[isize; 2]; 3],
}

impl Batch {
    fn new(a: &TensorView<'_>, b: &TensorView<'_>, c: &TensorView<'_>) -> Result<Batch, KernelError> {
        let (&[ref batch @ .., m, k], &[ref batch_b @ .., k_b, n]) = (a.shape(), b.shape()) else {
            return Err(mismatch("a and b must have at least two dimensions"));
        };
        let &[ref batch_c @ .., m_c, n_c] = c.shape() else {
            return Err(mismatch("the output must have at least two dimensions"));
        };
        if batch != batch_b || batch != batch_c || k != k_b || m != m_c || n != n_c {
            return Err(mismatch("shapes must be [batch..., m, k], [batch..., k, n] and [batch..., m, n]"));
        }
        let mut rank = batch.len();
        let steps =
            |view: &TensorView<'_>| [view.strides()[rank] as isize, view.strides()[rank + 1] as isize];
        let mut joined = Batch {
            rank,
            sizes: [m as usize, n as usize, k as usize],
            steps: [steps(c), steps(a), steps(b)],
        };
        // Matrices that share b are one taller matrix.
        while rank > 0 {
            let at = rank - 1;
            let (size, step_a, step_c) = (batch[at], a.strides()[at] as isize, c.strides()[at] as isize);
            let rows = joined.sizes[0] as isize;
            if size != 1 && rows != 1 {
                let continues = |step: isize, row: isize| step == rows.wrapping_mul(row);
                if b.strides()[at] != 0
                    || !continues(step_a, joined.steps[1][0])
                    || !continues(step_c, joined.steps[0][0])
                {
                    break;
                }
            } else if size != 1 {
                if b.strides()[at] != 0 {
                    break;
                }
                (joined.steps[1][0], joined.steps[0][0]) = (step_a, step_c);
            }
            joined.sizes[0] *= size as usize;
            rank = at;
        }
        joined.rank = rank;
        Ok(joined)
    }
}

fn product_f64(
    [m, n, k]: [usize; 3],
    [c, a, b]: [*mut f64; 3],
    steps: [[isize; 2]; 3],
    bias: Option<(*const f64, isize)>,
    alpha: f64,
) {
    let matrix = |start, steps| Shared(Matrix { start, steps });
    let (c, a, b) = (matrix(c, steps[0]), matrix(a, steps[1]), matrix(b, steps[2]));
    let bias = bias.map(|(start, step)| Shared(Matrix { start: start.cast_mut(), steps: [0, step] }));
    for_each_range(m, 8 * n * k, &|rows| {
        for row in rows {
            for column in 0..n {
                // SAFETY: all indices are inside the matrices, and rows are disjoint.
                unsafe {
                    let sum: f64 =
                        (0..k).map(|step| *a.get().at(row, step) * *b.get().at(step, column)).sum();
                    let bias = bias.as_ref().map_or(0.0, |bias| *bias.get().at(0, column));
                    *c.get().at(row, column) = alpha * sum + bias;
                }
            }
        }
    });
}

/// A matrix that several threads use.
struct Shared<T>(Matrix<T>);

// SAFETY: tasks write disjoint elements.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[inline(always)]
    fn get(&self) -> Matrix<T> {
        self.0
    }
}

impl<S: Simd, T: Float> Product<S, T> {
    /// Runs the product with a workspace of [`workspace_bytes`].
    pub fn run(self, workspace: &mut [u8]) {
        let [m, n, k] = self.sizes;
        if k == 0 {
            // Empty matrices may have no address.
            for row in 0..m {
                for first in (0..n).step_by(NC) {
                    self.write(row, first..n.min(first + NC), &[0.0; NC]);
                }
            }
        } else if m <= MAX_SKINNY_ROWS {
            skinny::run(&self, workspace);
        } else if n <= MAX_SKINNY_ROWS {
            skinny::run(&self.transposed(), workspace);
        } else {
            gemm(self.s, self.sizes, workspace, &self);
        }
    }

    /// `cᵀ = alpha bᵀ aᵀ + biasᵀ`
    fn transposed(self) -> Product<S, T> {
        let [m, n, k] = self.sizes;
        Product {
            a: self.b.transposed(),
            b: self.a.transposed(),
            c: self.c.transposed(),
            sizes: [n, m, k],
            bias_of_rows: !self.bias_of_rows,
            ..self
        }
    }

    /// Epilogue: scales sums, adds the bias, rounds and writes some columns of a row.
    pub fn write(&self, row: usize, columns: Range<usize>, sums: &[f32]) {
        let s = self.s;
        let sums = &sums[..columns.len()];
        let to = self.c.at(row, columns.start);
        let bias = |column: usize| match self.bias {
            // SAFETY: the bias has an element per column (or row).
            Some((start, step)) => unsafe {
                let index = if self.bias_of_rows { row } else { column };
                (*start.wrapping_offset(step * index as isize)).to_f32()
            },
            None => 0.0,
        };
        if !all_finite(s, sums) {
            // An intermediate sum may have overflowed.
            for (index, &sum) in sums.iter().enumerate() {
                let column = columns.start + index;
                let sum = if sum.is_finite() { f64::from(sum) } else { self.exact(row, column) };
                let value = f64::from(self.alpha) * sum + f64::from(bias(column));
                // SAFETY: the column is inside the output, and tasks write disjoint elements.
                unsafe { *self.c.at(row, column) = T::from_f32(value as f32) };
            }
            return;
        }
        let dense_bias = match self.bias {
            Some((start, 1)) if !self.bias_of_rows => Some(start.wrapping_add(columns.start)),
            _ => None,
        };
        if self.c.steps[1] == 1 && (self.bias.is_none() || self.bias_of_rows || dense_bias.is_some()) {
            let constant = if self.bias_of_rows { bias(0) } else { 0.0 };
            return s.vectorize(|| {
                let (alpha, constant) = (s.splat(self.alpha), s.splat(constant));
                vectors!(S, columns.len(), |span| {
                    // SAFETY: sums, bias and outputs have this many elements.
                    unsafe {
                        let sum = <f32 as Float>::load(s, sums.as_ptr(), span);
                        let bias = dense_bias.map_or(constant, |bias| T::load(s, bias, span));
                        T::store(s, to, span, s.fma(sum, alpha, bias));
                    }
                });
            });
        }
        for (index, &sum) in sums.iter().enumerate() {
            let value = self.alpha.mul_add(sum, bias(columns.start + index));
            // SAFETY: the column is inside the output, and tasks write disjoint elements.
            unsafe { *to.wrapping_offset(self.c.steps[1] * index as isize) = T::from_f32(value) };
        }
    }

    /// One sum in f64.
    #[cold]
    fn exact(&self, row: usize, column: usize) -> f64 {
        (0..self.sizes[2])
            .map(|step| {
                // SAFETY: the indices are inside the matrices.
                unsafe {
                    f64::from((*self.a.at(row, step)).to_f32())
                        * f64::from((*self.b.at(step, column)).to_f32())
                }
            })
            .sum()
    }
}

impl<S: Simd, T: Float> GemmOperands for Product<S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        // SAFETY: the caller guarantees the destination.
        unsafe { pack(self.s, &self.a, rows.start, self.sizes[0], rows.len(), rows.len(), depth, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        // SAFETY: the caller guarantees the destination.
        unsafe {
            pack(self.s, &self.b.transposed(), block * NC, self.sizes[1], NC, nr::<S>(), depth, to);
        }
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * NC..((block + 1) * NC).min(self.sizes[1]);
        // SAFETY: the caller guarantees a block of NC elements.
        let sums = unsafe { std::slice::from_raw_parts(from, columns.len()) };
        self.write(row, columns, sums);
    }
}

/// Packs steps `depth` of `count` rows from `first` on into panels of `wide` rows, transposed; rows from `end` on are packed as 0.
///
/// # Safety
/// `count * depth.len()` elements are writable, `count` is a multiple of `wide`, and rows before `end` are inside the matrix.
#[allow(clippy::too_many_arguments, reason = "two ranges, a panel width and a destination")]
pub(super) unsafe fn pack<S: Simd, T: Float>(
    s: S,
    matrix: &Matrix<T>,
    first: usize,
    end: usize,
    count: usize,
    wide: usize,
    depth: Range<usize>,
    to: *mut f32,
) {
    if matrix.steps[1] == 1 {
        let row = |index: usize| {
            // SAFETY: the row is inside the matrix, dense, and covers `depth`.
            (first + index < end).then(|| unsafe {
                std::slice::from_raw_parts(matrix.at(first + index, 0).cast_const(), depth.end)
            })
        };
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        return unsafe { transpose_rows(s, count, wide, depth.clone(), row, to) };
    }
    for panel in (0..count).step_by(wide) {
        let rows = wide.min(end.saturating_sub(first + panel));
        for (index, step) in depth.clone().enumerate() {
            let to = to.wrapping_add(panel * depth.len() + index * wide);
            let from = matrix.at(first + panel, step);
            // SAFETY: the caller guarantees the destination; these rows are inside the matrix.
            unsafe {
                if matrix.steps[0] == 1 {
                    copy_dense(s, from, rows, wide, to);
                } else {
                    for row in 0..wide {
                        let from = from.wrapping_offset(matrix.steps[0] * row as isize);
                        *to.add(row) = if row < rows { (*from).to_f32() } else { 0.0 };
                    }
                }
            }
        }
    }
}

/// Converts `rows` dense elements, and fills up to `wide` with 0.
#[inline(always)]
unsafe fn copy_dense<S: Simd, T: Float>(s: S, from: *const T, rows: usize, wide: usize, to: *mut f32) {
    s.vectorize(|| {
        vectors!(S, rows, |span| {
            // SAFETY: the caller guarantees both.
            unsafe { <f32 as Float>::store(s, to, span, T::load(s, from, span)) };
        });
        for row in rows..wide {
            // SAFETY: the caller guarantees the destination.
            unsafe { *to.add(row) = 0.0 };
        }
    });
}
