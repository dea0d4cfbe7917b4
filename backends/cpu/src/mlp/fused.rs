//! `mlp.fused`: gate and up in one pass over the input, kept in f32, then down.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{KernelError, Run, TensorMut};
use lz_ops::reference::activation;
use lz_ops::{MlpFusedActivation, MlpFusedCall, MlpFusedKernel, MlpFusedOut};

use super::activation::{Activation, WithActivation};
#[cfg(target_arch = "x86_64")]
use super::fused_tiles;
use super::grain;
use super::linear::Layer;
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::{MAX_SKINNY_ROWS, dot_f64, dots, gather, recompute_non_finite};
use crate::gemm::pack::transpose_rows;
use crate::isa::require;
use crate::pointwise::Pointwise;
use crate::rows::{Rows, RowsMut, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Rows that are dense, of any float type.
#[derive(Debug)]
pub(crate) struct Fused<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.mlp.fused",
    operation = "mlp.fused",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    workspace = "rows * intermediate * 4 + (0 if rows <= 8 else ceil_div(ceil_div(rows, ceil_div(rows, 1056)), 96) * 96 * ceil_div(max(in_features, intermediate), 32) * 128)"
)]
impl<S: Simd> MlpFusedKernel for Fused<S> {
    fn run(
        &self,
        call: &MlpFusedCall<'_>,
        mut out: MlpFusedOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let activation = activation_of(call.activation);
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = fused_tiles::tiles_for::<S>(call) {
            return fused_tiles::run(tiles, call, activation, &mut out, run);
        }
        let axes = &call.axes;
        let elements = axes.rows as usize * axes.intermediate as usize;
        let (packed, workspace) = workspace(call, run)?;
        let hidden: &mut [f32] = if workspace.is_empty() {
            // What an empty workspace points to need not be aligned.
            &mut []
        } else {
            // SAFETY: the workspace is aligned for f32, has this many bytes, and any bits are a number.
            unsafe { std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast(), elements) }
        };
        let shape = [axes.rows, axes.intermediate];
        with_float!(call.dtype_t, T => {
            let mut place = TensorMut::from_slice(&mut *hidden, &shape).map_err(KernelError::because)?;
            let (x, gate, up) =
                (Rows::new(&call.x)?, Rows::new(&call.gate_weight)?, Rows::new(&call.up_weight)?);
            let gated = Gated::<S, T> {
                s,
                x,
                gate,
                up,
                hidden: RowsMut::new(&mut place)?,
                activation,
            };
            gated.run(packed);
            let view = lz_core::TensorView::from_slice(&*hidden, &shape).map_err(KernelError::because)?;
            let layer = Layer::<S, f32, T> {
                s,
                x: Rows::new(&view)?,
                weight: Rows::new(&call.down_weight)?,
                bias: None,
                y: RowsMut::new(&mut out.output)?,
                activation: Activation::None,
            };
            layer.run(packed);
            mend(&x, [&gate, &up, &layer.weight], activation, &layer.y);
            Ok(())
        })
    }
}

/// Room for the left factor of one half after the other, and for what lies between them.
pub(super) fn workspace<'r>(
    call: &MlpFusedCall<'_>,
    run: &'r mut Run<'_>,
) -> Result<(&'r mut [u8], &'r mut [u8]), KernelError> {
    let axes = &call.axes;
    let (rows, between) = (axes.rows as usize, axes.rows as usize * axes.intermediate as usize);
    let depth = axes.in_features.max(axes.intermediate) as usize;
    let packed = if rows <= MAX_SKINNY_ROWS { 0 } else { packed_bytes(rows, depth) };
    let all = run.workspace(packed + (between * size_of::<f32>()) as u64)?;
    Ok(all.split_at_mut(packed as usize))
}

/// The activation that a call names.
fn activation_of(named: MlpFusedActivation) -> Activation {
    match named {
        MlpFusedActivation::None => Activation::None,
        MlpFusedActivation::Relu => Activation::Relu,
        MlpFusedActivation::Silu => Activation::Silu,
        MlpFusedActivation::Gelu => Activation::Gelu,
        MlpFusedActivation::GeluTanh => Activation::GeluTanh,
    }
}

/// Computes rows anew of which something is not finite, when every task is done.
pub(super) fn mend<T: Float>(
    x: &Rows<'_, T>,
    weights: [&Rows<'_, T>; 3],
    activation: Activation,
    output: &RowsMut<'_, T>,
) {
    for row in 0..x.count() {
        // SAFETY: every task is done, so nobody has the row.
        let y = unsafe { output.row(row) };
        if y.iter().any(|y| !y.to_f32().is_finite()) {
            write_widely(x.row(row), weights, activation, y);
        }
    }
}

/// A row of which something is not finite, in f64: a product may only have been too large for f32 on its way.
#[cold]
#[inline(never)]
fn write_widely<T: Float>(x: &[T], [gate, up, down]: [&Rows<'_, T>; 3], named: Activation, y: &mut [T]) {
    if x.iter().any(|x| x.to_f32().is_nan()) && gate.count() > 0 {
        return y.fill(T::from_f32(f32::NAN));
    }
    let function = match named {
        Activation::None => activation::identity,
        Activation::Relu => activation::relu,
        Activation::Silu => activation::silu,
        Activation::Gelu => activation::gelu,
        Activation::GeluTanh => activation::gelu_tanh,
    };
    let hidden: Vec<f64> =
        (0..gate.count()).map(|m| function(dot_f64(x, gate.row(m))) * dot_f64(x, up.row(m))).collect();
    for (o, y) in y.iter_mut().enumerate() {
        let products =
            hidden.iter().zip(down.row(o)).map(|(hidden, weight)| hidden * f64::from(weight.to_f32()));
        *y = T::from_f32(products.sum::<f64>() as f32);
    }
}

/// The first half: `act(x · gate) * (x · up)`.
struct Gated<'a, S, T> {
    s: S,
    x: Rows<'a, T>,
    gate: Rows<'a, T>,
    up: Rows<'a, T>,
    hidden: RowsMut<'a, f32>,
    activation: Activation,
}

/// Columns of a block are gates first, then as many ups.
const HALF: usize = NC / 2;

impl<S: Simd, T: Float> Gated<'_, S, T> {
    fn run(&self, workspace: &mut [u8]) {
        let (rows, columns, depth) = (self.x.count(), self.gate.count(), self.gate.width());
        if rows == 0 || columns == 0 {
        } else if rows <= MAX_SKINNY_ROWS {
            self.stream();
        } else {
            gemm(self.s, [rows, columns.div_ceil(HALF) * NC, depth], workspace, self);
        }
    }

    fn stream(&self) {
        let (s, count, depth) = (self.s, self.x.count(), self.gate.width());
        let x = gather::<T, MAX_SKINNY_ROWS>(&self.x, 0, count);
        let bytes = 2 * depth * size_of::<T>();
        let grain = grain(bytes);
        for_each_range(self.gate.count().div_ceil(grain), grain * bytes, |tasks| {
            let columns = tasks.start * grain..(tasks.end * grain).min(self.gate.count());
            let mut column = columns.start;
            while column < columns.end {
                let group = (columns.end - column).min(4);
                let gates = gather::<T, 4>(&self.gate, column, group);
                let ups = gather::<T, 4>(&self.up, column, group);
                let mut sums = [[[0.0f32; 16]; 2]; MAX_SKINNY_ROWS];
                for (half, weights) in [gates, ups].iter().enumerate() {
                    // SAFETY: all rows have `depth` numbers, as the call was checked.
                    unsafe {
                        dots(s, &x[..count], &weights[..group], depth, &mut |m, n, sum| {
                            sums[m][half][n] = sum
                        });
                    }
                }
                for (row, [gates, ups]) in sums.iter_mut().enumerate().take(count) {
                    self.write(row, column..column + group, gates, ups);
                }
                column += group;
            }
        });
    }

    /// Activates, multiplies and writes some columns of a row from their sums.
    fn write(&self, row: usize, columns: Range<usize>, gates: &mut [f32], ups: &mut [f32]) {
        let x = self.x.row(row);
        for (weight, sums) in [(&self.gate, &mut *gates), (&self.up, &mut *ups)] {
            let sums = &mut sums[..columns.len()];
            recompute_non_finite(self.s, sums, |place| dot_f64(x, weight.row(columns.start + place)));
        }
        // SAFETY: every task writes rows or columns of its own, and these columns are inside the row.
        let to = unsafe { self.hidden.part(row, columns) };
        self.activation.with(Write { s: self.s, gates, ups, to });
    }
}

/// The end of a row.
pub(super) struct Write<'w, S> {
    pub s: S,
    pub gates: &'w [f32],
    pub ups: &'w [f32],
    pub to: &'w mut [f32],
}

impl<S: Simd> WithActivation for Write<'_, S> {
    #[inline(never)]
    fn run(self, activation: impl Pointwise<1>) {
        let Write { s, gates, ups, to } = self;
        let columns = to.len().min(gates.len()).min(ups.len());
        s.vectorize(|| {
            vectors!(S, columns, |span| {
                // SAFETY: gates, ups and places have this many numbers.
                unsafe {
                    let gate = activation.apply(s, [<f32 as Float>::load(s, gates.as_ptr(), span)]);
                    let value = s.mul(gate, <f32 as Float>::load(s, ups.as_ptr(), span));
                    <f32 as Float>::store(s, to.as_mut_ptr(), span, value);
                }
            });
        });
    }
}

impl<S: Simd, T: Float> GemmOperands for Gated<'_, S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let row =
            |place: usize| (rows.start + place < self.x.count()).then(|| self.x.row(rows.start + place));
        // SAFETY: the caller guarantees the place; rows have the steps.
        unsafe { transpose_rows(self.s, rows.len(), rows.len(), depth, row, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let first = block * HALF;
        let row = |place: usize| {
            let (weight, column) =
                if place < HALF { (&self.gate, first + place) } else { (&self.up, first + place - HALF) };
            (column < weight.count()).then(|| weight.row(column))
        };
        // SAFETY: the caller guarantees the place; rows have the steps.
        unsafe { transpose_rows(self.s, NC, nr::<S>(), depth, row, to) };
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * HALF..((block + 1) * HALF).min(self.gate.count());
        // SAFETY: the caller guarantees a block of numbers; the ups of the block follow its gates.
        let (gates, ups) = unsafe {
            (
                std::slice::from_raw_parts_mut(from, columns.len()),
                std::slice::from_raw_parts_mut(from.add(HALF), columns.len()),
            )
        };
        self.write(row, columns, gates, ups);
    }
}
