//! `mlp.linear`: skinny GEMM for few rows, blocked GEMM (f32 or AMX) for many.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{DType, KernelError, Run};
use lz_ops::{MlpLinearCall, MlpLinearKernel, MlpLinearOut};

use super::activation::WithActivation;
use super::grain;
use super::output::Output;
use super::weights::PackWeights;
use crate::activation::Gate;
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::{MAX_SKINNY_ROWS, all_finite, dot_f64, dots_before, gather};
use crate::gemm::pack::transpose_rows;
use crate::gemm::panels::{PackedPanels, Product, TileEpilogue};
use crate::isa::require;
use crate::rows::{Rows, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense rows of any float type.
#[derive(Debug)]
pub(crate) struct Linear<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.mlp.linear",
    operation = "mlp.linear",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    workspace = "0 if rows <= 8 else ceil_div(ceil_div(rows, ceil_div(rows, 1056)), 96) * 96 * ceil_div(in_features, 32) * 128"
)]
impl<S: Simd> MlpLinearKernel for Linear<S> {
    fn run(
        &self,
        call: &MlpLinearCall<'_>,
        mut out: MlpLinearOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let (rows, depth) = (call.axes.rows as usize, call.axes.in_features as usize);
        if let Some(packed) = run.prepared::<PackedPanels>(WEIGHT)
            && packed_layer(s, call, &mut out, packed)?
        {
            return Ok(());
        }
        let workspace = run.workspace(if rows <= MAX_SKINNY_ROWS { 0 } else { packed_bytes(rows, depth) })?;
        with_float!(call.dtype_t, T => {
            let layer = Layer::<S, T, T> {
                s,
                x: Rows::new(&call.x)?,
                weight: Rows::new(&call.weight)?,
                out: Output::new(&mut out.output, call.bias.as_ref(), call.activation)?,
            };
            layer.run(workspace);
            Ok(())
        })
    }
}

/// Index of the weight among the inputs.
const WEIGHT: usize = 1;

impl<S: Simd> Linear<S> {
    /// The registry entry: constant weights are packed ahead of calls.
    pub(crate) fn packing(self) -> lz_core::KernelEntry {
        self.entry().prepared_by(PackWeights::<S>::new(&[WEIGHT]))
    }
}

/// Runs the layer with a packed weight; `false` if it does not fit the call.
fn packed_layer<S: Simd>(
    s: S,
    call: &MlpLinearCall<'_>,
    out: &mut MlpLinearOut<'_>,
    packed: &PackedPanels,
) -> Result<bool, KernelError> {
    let (rows, depth) = (call.axes.rows as usize, call.axes.in_features as usize);
    let fits = rows > 0 && packed.fits::<S>(call.axes.out_features as usize, depth);
    if call.dtype_t != Some(DType::F32) || !fits {
        return Ok(false);
    }
    let layer = Layer::<S, f32, f32> {
        s,
        x: Rows::new(&call.x)?,
        weight: Rows::new(&call.weight)?,
        out: Output::new(&mut out.output, call.bias.as_ref(), call.activation)?,
    };
    Ok(layer.run_packed(packed))
}

/// A linear layer whose input may have another type than its weights.
pub(super) struct Layer<'a, S, X, W> {
    pub s: S,
    pub x: Rows<'a, X>,
    pub weight: Rows<'a, W>,
    pub out: Output<'a, W>,
}

impl<S: Simd, X: Float, W: Float> Layer<'_, S, X, W> {
    /// Runs the layer. The blocked GEMM needs a workspace of [`packed_bytes`].
    pub(super) fn run(&self, workspace: &mut [u8]) {
        let (rows, columns, depth) = (self.x.count(), self.weight.count(), self.weight.width());
        if rows == 0 || columns == 0 {
        } else if rows <= MAX_SKINNY_ROWS {
            self.run_skinny();
        } else if self.run_amx(workspace) {
            // Done.
        } else {
            gemm(self.s, [rows, columns, depth], workspace, self);
        }
    }

    /// Runs the AMX GEMM, if AMX is available and both operands are bf16.
    #[cfg(target_arch = "x86_64")]
    fn run_amx(&self, workspace: &mut [u8]) -> bool {
        use crate::gemm::amx::{GemmOperands, gemm};
        // A constant, so that no code is created for other types.
        if !const { S::TILES && matches!((X::DTYPE, W::DTYPE), (DType::BF16, DType::BF16)) } {
            return false;
        }
        let Some(s) = crate::simd::Amx::detect() else { return false };
        let operands = GemmOperands {
            a: &[&|row| self.x.row(row).as_ptr().cast()],
            b: &|row| self.weight.row(row).as_ptr().cast(),
            sizes: [self.x.count(), self.weight.count(), self.weight.width()],
        };
        // SAFETY: rows of both operands have the width of the weight (validated).
        unsafe { gemm(s, &operands, workspace, &|row, columns, sums| self.write(row, columns, sums)) };
        true
    }

    /// No AMX on this target.
    #[cfg(not(target_arch = "x86_64"))]
    fn run_amx(&self, _workspace: &mut [u8]) -> bool {
        false
    }

    /// Skinny GEMM: each task computes some columns of all rows.
    fn run_skinny(&self) {
        let (s, count, depth) = (self.s, self.x.count(), self.weight.width());
        let x = gather::<X, MAX_SKINNY_ROWS>(&self.x, 0, count);
        let bytes = depth * size_of::<W>();
        let grain = grain(bytes);
        for_each_range(self.weight.count().div_ceil(grain), grain * bytes, &|tasks| {
            let columns = tasks.start * grain..(tasks.end * grain).min(self.weight.count());
            let mut column = columns.start;
            while column < columns.end {
                let group = (columns.end - column).min(8);
                let weights = gather::<W, 8>(&self.weight, column, group);
                let mut sums = [[0.0f32; 16]; MAX_SKINNY_ROWS];
                let next = column + group;
                let next = gather::<W, 8>(&self.weight, next, (columns.end - next).min(8));
                let take = &mut |m: usize, n: usize, sum| sums[m][n] = sum;
                // SAFETY: all rows have `depth` elements (validated).
                unsafe { dots_before(s, &x[..count], &weights[..group], &next, depth, take) };
                for (row, sums) in sums.iter_mut().enumerate().take(count) {
                    self.write(row, column..column + group, sums);
                }
                column += group;
            }
        });
    }

    /// Epilogue: adds the bias, applies the activation, rounds and writes some columns of a row.
    pub(super) fn write(&self, row: usize, columns: Range<usize>, sums: &mut [f32]) {
        let exact = |column: usize| dot_f64(self.x.row(row), self.weight.row(column));
        self.out.write(self.s, row, columns, sums, exact);
    }
}

impl<S: Simd> Layer<'_, S, f32, f32> {
    /// Runs the layer with its weight packed; `false` if the rows of the input are not equally far apart.
    pub(super) fn run_packed(&self, packed: &PackedPanels) -> bool {
        let Some((a, stride)) = self.x.uniform() else { return false };
        let product = Product { s: self.s, a, stride, rows: self.x.count(), b: [packed] };
        // SAFETY: rows of the input have the width of the weight (validated), and the packed weight has its size.
        unsafe { product.run(self) };
        true
    }
}

impl<S: Simd> TileEpilogue<1> for Layer<'_, S, f32, f32> {
    fn prefetch(&self, rows: Range<usize>, columns: Range<usize>) {
        for row in rows {
            self.out.y.prefetch(row, columns.clone());
        }
    }

    unsafe fn write(&self, rows: Range<usize>, columns: Range<usize>, [tile]: [*mut f32; 1], step: usize) {
        // SAFETY: the caller guarantees the tile.
        let sums = unsafe { std::slice::from_raw_parts_mut(tile, rows.len() * step) };
        if !all_finite(self.s, sums) {
            for (row, sums) in rows.zip(sums.chunks_exact_mut(step)) {
                Layer::write(self, row, columns.clone(), sums);
            }
            return;
        }
        let bias = self.out.bias(columns.clone());
        self.out.activation.with(TileRows { layer: self, rows, columns, sums, step, bias });
    }
}

/// Epilogue of a tile of finite sums: bias, activation.
struct TileRows<'w, 'a, S> {
    layer: &'w Layer<'a, S, f32, f32>,
    rows: Range<usize>,
    columns: Range<usize>,
    sums: &'w [f32],
    step: usize,
    bias: Option<&'w [f32]>,
}

impl<S: Simd> WithActivation for TileRows<'_, '_, S> {
    #[inline(never)]
    fn run(self, activation: impl Gate) {
        let (s, count) = (self.layer.s, self.columns.len());
        s.vectorize(|| {
            for (row, sums) in self.rows.zip(self.sums.chunks_exact(self.step)) {
                // SAFETY: tasks write disjoint rows or columns, and these columns are inside the row.
                let to = unsafe { self.layer.out.y.part(row, self.columns.clone()) };
                vectors!(S, count, |span| {
                    // SAFETY: sums, bias and outputs have this many elements.
                    unsafe {
                        let mut value = <f32 as Float>::load(s, sums.as_ptr(), span);
                        if let Some(bias) = self.bias {
                            value = s.add(value, <f32 as Float>::load(s, bias.as_ptr(), span));
                        }
                        <f32 as Float>::store(s, to.as_mut_ptr(), span, activation.apply(s, [value]));
                    }
                });
            }
        });
    }
}

impl<S: Simd, X: Float, W: Float> GemmOperands for Layer<'_, S, X, W> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let row =
            |index: usize| (rows.start + index < self.x.count()).then(|| self.x.row(rows.start + index));
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(self.s, rows.len(), rows.len(), depth, row, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let first = block * NC;
        let row =
            |index: usize| (first + index < self.weight.count()).then(|| self.weight.row(first + index));
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(self.s, NC, nr::<S>(), depth, row, to) };
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * NC..((block + 1) * NC).min(self.weight.count());
        // SAFETY: the caller guarantees a block of NC elements.
        let sums = unsafe { std::slice::from_raw_parts_mut(from, columns.len()) };
        self.write(row, columns, sums);
    }
}
