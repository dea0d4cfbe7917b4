//! `mlp.linear.fp8`: FP8 operands are decoded to f32 on load. Scales of tensors and rows multiply the sum in the
//! epilogue; scales of blocks multiply the packed panels, or the sums of their blocks.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::element::F8E4M3;
use lz_core::{DType, KernelError, Run};
use lz_ops::{
    MlpLinearFp8Call, MlpLinearFp8Kernel, MlpLinearFp8Out, MlpLinearFp8OutputDtype as OutputDtype,
    MlpLinearFp8WeightGranularity as WeightGranularity, MlpLinearFp8XGranularity as XGranularity,
};

use super::grain;
use super::output::Output;
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::{MAX_SKINNY_ROWS, dots, gather};
use crate::gemm::pack::transpose_rows;
use crate::isa::require;
use crate::rows::{Rows, Shape, for_each_range};
use crate::simd::{Float, Simd, with_float};

/// Dense rows.
#[derive(Debug)]
pub(crate) struct LinearFp8<S>(pub PhantomData<S>);

/// Elements per side of a block.
const BLOCK: usize = 128;

/// Scales of blocks outside of this range are multiplied in f64, because their products with elements could leave the range of f32.
const SCALE_RANGE: Range<f32> = 1e-15..1e15;

#[lz_macros::kernel(
    id = "cpu.mlp.linear.fp8",
    operation = "mlp.linear.fp8",
    backend = "cpu",
    priority = 60,
    strides = last_dense,
    deterministic,
    workspace = "0 if rows <= 8 else ceil_div(ceil_div(rows, ceil_div(rows, 1056)), 96) * 96 * ceil_div(in_features, 32) * 128"
)]
impl<S: Simd> MlpLinearFp8Kernel for LinearFp8<S> {
    fn run(
        &self,
        call: &MlpLinearFp8Call<'_>,
        mut out: MlpLinearFp8Out<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let dtype = match call.output_dtype {
            OutputDtype::F32 => DType::F32,
            OutputDtype::F16 => DType::F16,
            OutputDtype::Bf16 => DType::BF16,
        };
        with_float!(Some(dtype), T => layer::<S, T>(s, call, &mut out, run))
    }
}

fn layer<S: Simd, T: Float>(
    s: S,
    call: &MlpLinearFp8Call<'_>,
    out: &mut MlpLinearFp8Out<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (rows, depth) = (call.axes.rows as usize, call.axes.in_features as usize);
    let workspace = run.workspace(if rows <= MAX_SKINNY_ROWS { 0 } else { packed_bytes(rows, depth) })?;
    let layer = Layer::<S, T> {
        s,
        x: Rows::new(&call.x)?,
        weight: Rows::new(&call.weight)?,
        x_scale: match call.x_granularity {
            XGranularity::Tensor => Scales::new(Rows::shaped(&call.x_scale, Shape::Elements)?, 0, 0),
            XGranularity::Row => Scales::new(Rows::shaped(&call.x_scale, Shape::Elements)?, 1, 0),
            XGranularity::Block => Scales::new(Rows::new(&call.x_scale)?, 1, BLOCK),
        },
        weight_scale: match call.weight_granularity {
            WeightGranularity::Tensor => {
                Scales::new(Rows::shaped(&call.weight_scale, Shape::Elements)?, 0, 0)
            }
            WeightGranularity::Row => Scales::new(Rows::shaped(&call.weight_scale, Shape::Elements)?, 1, 0),
            WeightGranularity::Block => Scales::new(Rows::new(&call.weight_scale)?, BLOCK, BLOCK),
        },
        out: Output::new(&mut out.output, call.bias.as_ref(), call.activation)?,
    };
    layer.run(workspace);
    Ok(())
}

/// The scales of one operand.
struct Scales<'a> {
    rows: Rows<'a, f32>,
    /// Rows of the operand that share a row of scales; 0 if all do.
    group: usize,
    /// Elements of a row that share a scale; 0 if all do.
    block: usize,
    /// Whether products with them stay within f32.
    moderate: bool,
}

impl<'a> Scales<'a> {
    fn new(rows: Rows<'a, f32>, group: usize, block: usize) -> Scales<'a> {
        let mut all = (0..if block == 0 { 0 } else { rows.count() }).flat_map(|row| rows.row(row));
        let moderate = all.all(|scale| *scale == 0.0 || SCALE_RANGE.contains(&scale.abs()));
        Scales { rows, group, block, moderate }
    }

    /// The scales of a row: one, or one per block.
    fn of(&self, row: usize) -> &'a [f32] {
        self.rows.row(row.checked_div(self.group).unwrap_or(0))
    }

    /// The scale of an element.
    fn at(&self, row: usize, index: usize) -> f32 {
        self.of(row)[index.checked_div(self.block).unwrap_or(0)]
    }

    /// The factor of a whole row: 1 if blocks have scales of their own.
    fn of_row(&self, row: usize) -> f64 {
        if self.block > 0 { 1.0 } else { f64::from(self.at(row, 0)) }
    }

    /// The factor of a block: 1 if whole rows share a scale.
    fn of_block(&self, row: usize, index: usize) -> f32 {
        if self.block > 0 { self.at(row, index) } else { 1.0 }
    }
}

struct Layer<'a, S, T> {
    s: S,
    x: Rows<'a, F8E4M3>,
    weight: Rows<'a, F8E4M3>,
    x_scale: Scales<'a>,
    weight_scale: Scales<'a>,
    out: Output<'a, T>,
}

impl<S: Simd, T: Float> Layer<'_, S, T> {
    fn run(&self, workspace: &mut [u8]) {
        let (rows, columns, depth) = (self.x.count(), self.weight.count(), self.weight.width());
        if rows == 0 || columns == 0 {
        } else if !(self.x_scale.moderate && self.weight_scale.moderate) {
            self.run_f64();
        } else if rows <= MAX_SKINNY_ROWS {
            self.run_skinny();
        } else {
            gemm(self.s, [rows, columns, depth], workspace, self);
        }
    }

    /// All sums in f64.
    #[cold]
    fn run_f64(&self) {
        for_each_range(self.x.count(), self.weight.count() * self.weight.width(), &|rows| {
            for row in rows {
                for column in 0..self.weight.count() {
                    self.write(row, column..column + 1, &mut [f32::NAN]);
                }
            }
        });
    }

    /// Skinny GEMM: each task computes some columns of all rows, block after block of the inputs.
    fn run_skinny(&self) {
        let (count, depth) = (self.x.count(), self.weight.width());
        let step = if self.x_scale.block + self.weight_scale.block > 0 { BLOCK } else { depth.max(1) };
        let x = gather::<F8E4M3, MAX_SKINNY_ROWS>(&self.x, 0, count);
        let grain = grain(depth);
        for_each_range(self.weight.count().div_ceil(grain), grain * depth, &|tasks| {
            let columns = tasks.start * grain..(tasks.end * grain).min(self.weight.count());
            for column in columns.clone().step_by(8) {
                let group = (columns.end - column).min(8);
                let weights = gather::<F8E4M3, 8>(&self.weight, column, group);
                let mut sums = [[0.0f32; 8]; MAX_SKINNY_ROWS];
                for start in (0..depth).step_by(step) {
                    let part = start..depth.min(start + step);
                    let (x, weights) = (
                        x.map(|row| row.get(part.clone()).unwrap_or(&[])),
                        weights.map(|row| row.get(part.clone()).unwrap_or(&[])),
                    );
                    let add = &mut |m: usize, n: usize, sum: f32| {
                        let scale =
                            self.x_scale.of_block(m, start) * self.weight_scale.of_block(column + n, start);
                        sums[m][n] += sum * scale;
                    };
                    // SAFETY: all rows have the elements of this part.
                    unsafe { dots(self.s, &x[..count], &weights[..group], part.len(), add) };
                }
                for (row, sums) in sums.iter_mut().enumerate().take(count) {
                    self.write(row, column..column + group, sums);
                }
            }
        });
    }

    /// Epilogue: scales of tensors and rows, bias, activation, rounding. Sums that are not finite are computed again.
    fn write(&self, row: usize, columns: Range<usize>, sums: &mut [f32]) {
        let sums = &mut sums[..columns.len()];
        let x_scale = self.x_scale.of_row(row);
        for (column, sum) in columns.clone().zip(sums.iter_mut()) {
            *sum = (f64::from(*sum) * (x_scale * self.weight_scale.of_row(column))) as f32;
        }
        self.out.write(self.s, row, columns, sums, |column| self.sum_f64(row, column));
    }

    /// Dot product in f64.
    #[cold]
    #[inline(never)]
    fn sum_f64(&self, row: usize, column: usize) -> f64 {
        let elements = self.x.row(row).iter().zip(self.weight.row(column)).enumerate();
        elements
            .map(|(i, (x, weight))| {
                let x = f64::from(x.to_f32()) * f64::from(self.x_scale.at(row, i));
                x * (f64::from(weight.to_f32()) * f64::from(self.weight_scale.at(column, i)))
            })
            .sum()
    }
}

impl<S: Simd, T: Float> GemmOperands for Layer<'_, S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let row =
            |index: usize| (rows.start + index < self.x.count()).then(|| self.x.row(rows.start + index));
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe {
            transpose_rows(self.s, rows.len(), rows.len(), depth.clone(), row, to);
            if self.x_scale.block > 0 {
                let to = std::slice::from_raw_parts_mut(to, rows.len() * depth.len());
                scale_panel(self.s, &self.x_scale, rows, self.x.count(), depth, to);
            }
        }
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let (first, wide) = (block * NC, nr::<S>());
        let row =
            |index: usize| (first + index < self.weight.count()).then(|| self.weight.row(first + index));
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe {
            transpose_rows(self.s, NC, wide, depth.clone(), row, to);
            if self.weight_scale.block > 0 {
                let to = std::slice::from_raw_parts_mut(to, NC * depth.len());
                for (panel, to) in to.chunks_exact_mut(wide * depth.len().max(1)).enumerate() {
                    let rows = first + panel * wide..first + (panel + 1) * wide;
                    scale_panel(self.s, &self.weight_scale, rows, self.weight.count(), depth.clone(), to);
                }
            }
        }
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * NC..((block + 1) * NC).min(self.weight.count());
        // SAFETY: the caller guarantees a block of NC elements.
        let sums = unsafe { std::slice::from_raw_parts_mut(from, columns.len()) };
        self.write(row, columns, sums);
    }
}

/// Multiplies the packed elements of `rows` (step after step of `depth`, one element per row) by the scales of their blocks.
fn scale_panel<S: Simd>(
    s: S,
    scales: &Scales<'_>,
    rows: Range<usize>,
    count: usize,
    depth: Range<usize>,
    to: &mut [f32],
) {
    let mut factors = [0.0f32; NC];
    let factors = &mut factors[..rows.len()];
    let mut step = 0;
    while step < depth.len() {
        let index = depth.start + step;
        let end = depth.len().min((index / BLOCK + 1) * BLOCK - depth.start);
        for (factor, row) in factors.iter_mut().zip(rows.clone()) {
            *factor = if row < count { scales.at(row, index) } else { 0.0 };
        }
        s.vectorize(|| {
            for steps in to[step * rows.len()..end * rows.len()].chunks_exact_mut(rows.len()) {
                for (value, factor) in steps.iter_mut().zip(&*factors) {
                    *value *= factor;
                }
            }
        });
        step = end;
    }
}
