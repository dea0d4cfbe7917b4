//! `mlp.linear.fp4`: rows of x are decoded to f32 into the workspace, weights a few rows at a time.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{DType, KernelError, Run};
use lz_ops::{
    MlpLinearFp4Call, MlpLinearFp4Format as Format, MlpLinearFp4Kernel, MlpLinearFp4Out,
    MlpLinearFp4OutputDtype as OutputDtype,
};

use super::output::Output;
use crate::isa::require;
use crate::quant::{COLUMNS, Grouping, LEFT_ROWS, QuantizedRows, Stored, products};
use crate::rows::{Shape, for_each_range, read_scalar};
use crate::simd::{Float, Simd, with_float};

/// Dense rows, both formats.
#[derive(Debug)]
pub(crate) struct LinearFp4<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.mlp.linear.fp4",
    operation = "mlp.linear.fp4",
    backend = "cpu",
    priority = 60,
    quant_formats("mxfp4", "nvfp4"),
    strides = last_dense,
    deterministic,
    workspace = "min(rows, 64) * stored * 8"
)]
impl<S: Simd> MlpLinearFp4Kernel for LinearFp4<S> {
    fn run(
        &self,
        call: &MlpLinearFp4Call<'_>,
        mut out: MlpLinearFp4Out<'_>,
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
    call: &MlpLinearFp4Call<'_>,
    out: &mut MlpLinearFp4Out<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (rows, depth) = (call.axes.rows as usize, 2 * call.axes.stored as usize);
    let elements = match call.format {
        Format::Mxfp4 => 32,
        Format::Nvfp4 => 16,
    };
    let grouping = Grouping { matrix: usize::MAX, rows: 1, elements };
    let x_global = call.x_global_scale.as_ref().map(read_scalar::<f32>).transpose()?.unwrap_or(1.0);
    let weight_global = call.weight_global_scale.as_ref().map(read_scalar::<f32>).transpose()?.unwrap_or(1.0);
    let workspace = run.workspace((rows.min(LEFT_ROWS) * depth * size_of::<f32>()) as u64)?;
    // SAFETY: the workspace is aligned for f32, and any bits are valid values.
    let decoded = unsafe {
        std::slice::from_raw_parts_mut(
            workspace.as_mut_ptr().cast::<f32>(),
            workspace.len() / size_of::<f32>(),
        )
    };
    let layer = Layer::<S, T> {
        s,
        x: QuantizedRows::new(&call.x, Stored::E2m1, &call.x_scale, Shape::Last, grouping)?.global(x_global),
        weight: QuantizedRows::new(&call.weight, Stored::E2m1, &call.weight_scale, Shape::Last, grouping)?
            .global(weight_global),
        out: Output::new(&mut out.output, call.bias.as_ref(), call.activation)?,
        depth,
    };
    for first in (0..rows).step_by(LEFT_ROWS) {
        let rows = first..rows.min(first + LEFT_ROWS);
        let mut x: [&[f32]; LEFT_ROWS] = [&[]; LEFT_ROWS];
        let mut rest = &mut *decoded;
        for (to, row) in x.iter_mut().zip(rows.clone()) {
            let (part, after) = rest.split_at_mut(depth);
            // SAFETY: rows have `depth` elements.
            unsafe { layer.x.decode(s, row, 0..depth, part) };
            (*to, rest) = (part, after);
        }
        layer.run(rows.clone(), &x[..rows.len()]);
    }
    Ok(())
}

struct Layer<'a, S, T> {
    s: S,
    x: QuantizedRows<'a>,
    weight: QuantizedRows<'a>,
    out: Output<'a, T>,
    depth: usize,
}

impl<S: Simd, T: Float> Layer<'_, S, T> {
    /// Computes some rows; `x` has their elements.
    fn run(&self, rows: Range<usize>, x: &[&[f32]]) {
        let count = self.weight.count();
        for_each_range(count.div_ceil(COLUMNS), COLUMNS * self.depth * x.len(), &|groups| {
            for group in groups {
                let columns = group * COLUMNS..count.min((group + 1) * COLUMNS);
                let weights: [usize; COLUMNS] = std::array::from_fn(|index| columns.start + index);
                // SAFETY: all rows have `depth` elements (validated).
                let mut sums =
                    unsafe { products(self.s, x, &self.weight, &weights[..columns.len()], self.depth) };
                for (row, sums) in rows.clone().zip(&mut sums) {
                    let exact = |column: usize| self.sum_f64(row, column);
                    self.out.write(self.s, row, columns.clone(), sums, exact);
                }
            }
        });
    }

    /// Dot product in f64.
    #[cold]
    #[inline(never)]
    fn sum_f64(&self, row: usize, column: usize) -> f64 {
        // SAFETY: all rows have `depth` elements.
        (0..self.depth).map(|i| unsafe { self.x.value(row, i) * self.weight.value(column, i) }).sum()
    }
}
