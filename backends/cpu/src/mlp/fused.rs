//! `mlp.fused`: gate and up projections in one pass over the input, kept in f32, then the down projection.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{DType, KernelError, Run, TensorMut};
use lz_ops::reference::activation;
use lz_ops::{MlpFusedCall, MlpFusedKernel, MlpFusedOut};

use super::activation::{Activation, WithActivation};
#[cfg(target_arch = "x86_64")]
use super::fused_amx;
use super::grain;
use super::linear::Layer;
use super::output::Output;
use super::weights::PackWeights;
use crate::activation::Gate;
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::{MAX_SKINNY_ROWS, all_finite, dot_f64, dots, gather, recompute_non_finite};
use crate::gemm::pack::transpose_rows;
use crate::gemm::panels::{PackedPanels, Product, TileEpilogue};
use crate::isa::require;
use crate::memory;
use crate::rows::{Rows, RowsMut, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense rows of any float type.
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
        let activation = Activation::from(call.activation);
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = fused_amx::detect_amx::<S>(call) {
            return fused_amx::run(tiles, call, activation, &mut out, run);
        }
        if let Some(weights) = packed_weights::<S>(call, run)
            && run_packed(s, call, &mut out, run, weights)?
        {
            return Ok(());
        }
        let axes = &call.axes;
        let elements = axes.rows as usize * axes.intermediate as usize;
        let (packed, workspace) = workspace(call, run)?;
        let hidden: &mut [f32] = if workspace.is_empty() {
            // An empty workspace need not be aligned.
            &mut []
        } else {
            // SAFETY: the workspace is aligned for f32, has this many bytes, and any bits are a valid f32.
            unsafe { std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast(), elements) }
        };
        let shape = [axes.rows, axes.intermediate];
        with_float!(call.dtype_t, T => {
            let mut hidden_tensor = TensorMut::from_slice(&mut *hidden, &shape).map_err(KernelError::because)?;
            let (x, gate, up) =
                (Rows::new(&call.x)?, Rows::new(&call.gate_weight)?, Rows::new(&call.up_weight)?);
            let gated = Gated::<S, T> {
                s,
                x,
                gate,
                up,
                hidden: RowsMut::new(&mut hidden_tensor)?,
                activation,
            };
            gated.run(packed);
            let view = lz_core::TensorView::from_slice(&*hidden, &shape).map_err(KernelError::because)?;
            let layer = Layer::<S, f32, T> {
                s,
                x: Rows::new(&view)?,
                weight: Rows::new(&call.down_weight)?,
                out: Output::new(&mut out.output, None, Activation::None)?,
            };
            layer.run(packed);
            let is_finite = |y: &[T]| y.iter().all(|y| y.to_f32().is_finite());
            recompute_non_finite_rows(&x, [&gate, &up, &layer.weight], activation, &layer.out.y, is_finite)
        })
    }
}

impl<S: Simd> Fused<S> {
    /// The registry entry: constant weights are packed ahead of calls.
    pub(crate) fn packing(self) -> lz_core::KernelEntry {
        self.entry().prepared_by(PackWeights::<S>::new(&[1, 2, 3]))
    }
}

/// The packed gate, up and down weights, if all of them were packed ahead of this call.
fn packed_weights<'a, S: Simd>(call: &MlpFusedCall<'_>, run: &Run<'a>) -> Option<[&'a PackedPanels; 3]> {
    let axes = &call.axes;
    let (depth, hidden, columns) =
        (axes.in_features as usize, axes.intermediate as usize, axes.out_features as usize);
    let weight = |input: usize, columns: usize, depth: usize| {
        run.prepared::<PackedPanels>(input).filter(|packed| packed.fits::<S>(columns, depth))
    };
    let weights = [weight(1, hidden, depth)?, weight(2, hidden, depth)?, weight(3, columns, hidden)?];
    (axes.rows > 0 && call.dtype_t == Some(DType::F32)).then_some(weights)
}

/// Runs the block with packed weights; `false` if the rows of the input are not equally far apart.
fn run_packed<S: Simd>(
    s: S,
    call: &MlpFusedCall<'_>,
    out: &mut MlpFusedOut<'_>,
    run: &mut Run<'_>,
    [gate_panels, up_panels, down_panels]: [&PackedPanels; 3],
) -> Result<bool, KernelError> {
    let (rows, intermediate) = (call.axes.rows, call.axes.intermediate);
    let x = Rows::new(&call.x)?;
    let Some((a, stride)) = x.uniform() else { return Ok(false) };
    let elements = rows as usize * intermediate as usize;
    let workspace = run.workspace((elements * size_of::<f32>()) as u64)?;
    if workspace.is_empty() {
        return Ok(false);
    }
    // SAFETY: the workspace is aligned for f32, has this many bytes, and any bits are a valid f32.
    let hidden: &mut [f32] =
        unsafe { std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast(), elements) };
    let shape = [rows, intermediate];
    let activation = Activation::from(call.activation);
    let mut hidden_tensor = TensorMut::from_slice(&mut *hidden, &shape).map_err(KernelError::because)?;
    let (gate, up) = (Rows::new(&call.gate_weight)?, Rows::new(&call.up_weight)?);
    let gated = Gated::<S, f32> { s, x, gate, up, hidden: RowsMut::new(&mut hidden_tensor)?, activation };
    let product = Product { s, a, stride, rows: x.count(), b: [gate_panels, up_panels] };
    // SAFETY: rows of the input have the width of the weights (validated), and the packed weights have their sizes.
    unsafe { product.run(&gated) };
    let view = lz_core::TensorView::from_slice(&*hidden, &shape).map_err(KernelError::because)?;
    let layer = Layer::<S, f32, f32> {
        s,
        x: Rows::new(&view)?,
        weight: Rows::new(&call.down_weight)?,
        out: Output::new(&mut out.output, None, Activation::None)?,
    };
    let done = layer.run_packed(down_panels);
    debug_assert!(done, "the intermediate result is dense");
    let weights = [&gate, &up, &layer.weight];
    recompute_non_finite_rows(&x, weights, activation, &layer.out.y, |y| all_finite(s, y))?;
    Ok(true)
}

/// Workspace for packed A of both GEMMs (one after the other), and for the intermediate result.
pub(super) fn workspace<'r>(
    call: &MlpFusedCall<'_>,
    run: &'r mut Run<'_>,
) -> Result<(&'r mut [u8], &'r mut [u8]), KernelError> {
    let axes = &call.axes;
    let (rows, intermediate) = (axes.rows as usize, axes.rows as usize * axes.intermediate as usize);
    let depth = axes.in_features.max(axes.intermediate) as usize;
    let packed = if rows <= MAX_SKINNY_ROWS { 0 } else { packed_bytes(rows, depth) };
    let all = run.workspace(packed + (intermediate * size_of::<f32>()) as u64)?;
    Ok(all.split_at_mut(packed as usize))
}

/// Recomputes rows with non-finite results, after all tasks finished.
pub(super) fn recompute_non_finite_rows<T: Float>(
    x: &Rows<'_, T>,
    weights: [&Rows<'_, T>; 3],
    activation: Activation,
    output: &RowsMut<'_, T>,
    is_finite: impl Fn(&[T]) -> bool,
) -> Result<(), KernelError> {
    for row in 0..x.count() {
        // SAFETY: all tasks finished, so no other reference to the row exists.
        let y = unsafe { output.row(row) };
        if !is_finite(y) {
            write_row_f64(x.row(row), weights, activation, y)?;
        }
    }
    Ok(())
}

/// Recomputes a row in f64, because an intermediate result may have overflowed in f32.
#[cold]
#[inline(never)]
fn write_row_f64<T: Float>(
    x: &[T],
    [gate, up, down]: [&Rows<'_, T>; 3],
    activation: Activation,
    y: &mut [T],
) -> Result<(), KernelError> {
    if x.iter().any(|x| x.to_f32().is_nan()) && gate.count() > 0 {
        y.fill(T::from_f32(f32::NAN));
        return Ok(());
    }
    let function = match activation {
        Activation::None => activation::identity,
        Activation::Relu => activation::relu,
        Activation::Silu => activation::silu,
        Activation::Gelu => activation::gelu,
        Activation::GeluTanh => activation::gelu_tanh,
    };
    let products = (0..gate.count()).map(|m| function(dot_f64(x, gate.row(m))) * dot_f64(x, up.row(m)));
    let hidden = memory::collect(gate.count(), products)?;
    for (o, y) in y.iter_mut().enumerate() {
        let products =
            hidden.iter().zip(down.row(o)).map(|(hidden, weight)| hidden * f64::from(weight.to_f32()));
        *y = T::from_f32(products.sum::<f64>() as f32);
    }
    Ok(())
}

/// The first GEMM: `act(x · gate) * (x · up)`.
struct Gated<'a, S, T> {
    s: S,
    x: Rows<'a, T>,
    gate: Rows<'a, T>,
    up: Rows<'a, T>,
    hidden: RowsMut<'a, f32>,
    activation: Activation,
}

/// A column block consists of gate columns, followed by as many up columns.
const GATE_COLUMNS: usize = NC / 2;

impl<S: Simd, T: Float> Gated<'_, S, T> {
    fn run(&self, workspace: &mut [u8]) {
        let (rows, columns, depth) = (self.x.count(), self.gate.count(), self.gate.width());
        if rows == 0 || columns == 0 {
        } else if rows <= MAX_SKINNY_ROWS {
            self.run_skinny();
        } else {
            gemm(self.s, [rows, columns.div_ceil(GATE_COLUMNS) * NC, depth], workspace, self);
        }
    }

    fn run_skinny(&self) {
        let (s, count, depth) = (self.s, self.x.count(), self.gate.width());
        let x = gather::<T, MAX_SKINNY_ROWS>(&self.x, 0, count);
        let bytes = 2 * depth * size_of::<T>();
        let grain = grain(bytes);
        for_each_range(self.gate.count().div_ceil(grain), grain * bytes, &|tasks| {
            let columns = tasks.start * grain..(tasks.end * grain).min(self.gate.count());
            let mut column = columns.start;
            while column < columns.end {
                let group = (columns.end - column).min(4);
                let gates = gather::<T, 4>(&self.gate, column, group);
                let ups = gather::<T, 4>(&self.up, column, group);
                let mut sums = [[[0.0f32; 16]; 2]; MAX_SKINNY_ROWS];
                for (half, weights) in [gates, ups].iter().enumerate() {
                    // SAFETY: all rows have `depth` elements (validated).
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

    /// Epilogue: applies the activation, multiplies and writes some columns of a row.
    fn write(&self, row: usize, columns: Range<usize>, gates: &mut [f32], ups: &mut [f32]) {
        let x = self.x.row(row);
        for (weight, sums) in [(&self.gate, &mut *gates), (&self.up, &mut *ups)] {
            let sums = &mut sums[..columns.len()];
            recompute_non_finite(self.s, sums, |index| dot_f64(x, weight.row(columns.start + index)));
        }
        // SAFETY: tasks write disjoint rows or columns, and these columns are inside the row.
        let to = unsafe { self.hidden.part(row, columns) };
        self.activation.with(Epilogue { s: self.s, gates, ups, to });
    }
}

/// Epilogue of some columns of a row.
pub(super) struct Epilogue<'w, S> {
    pub s: S,
    pub gates: &'w [f32],
    pub ups: &'w [f32],
    pub to: &'w mut [f32],
}

impl<S: Simd> WithActivation for Epilogue<'_, S> {
    #[inline(never)]
    fn run(self, activation: impl Gate) {
        let Epilogue { s, gates, ups, to } = self;
        let columns = to.len().min(gates.len()).min(ups.len());
        s.vectorize(|| {
            vectors!(S, columns, |span| {
                // SAFETY: gates, ups and outputs have this many elements.
                unsafe {
                    let gate = <f32 as Float>::load(s, gates.as_ptr(), span);
                    let value = activation.product(s, gate, <f32 as Float>::load(s, ups.as_ptr(), span));
                    <f32 as Float>::store(s, to.as_mut_ptr(), span, value);
                }
            });
        });
    }
}

impl<S: Simd> TileEpilogue<2> for Gated<'_, S, f32> {
    fn prefetch(&self, rows: Range<usize>, columns: Range<usize>) {
        for row in rows {
            self.hidden.prefetch(row, columns.clone());
        }
    }

    unsafe fn write(&self, rows: Range<usize>, columns: Range<usize>, tiles: [*mut f32; 2], step: usize) {
        // SAFETY: the caller guarantees the tiles.
        let [gates, ups] =
            tiles.map(|tile| unsafe { std::slice::from_raw_parts_mut(tile, rows.len() * step) });
        if !all_finite(self.s, gates) || !all_finite(self.s, ups) {
            let sums = gates.chunks_exact_mut(step).zip(ups.chunks_exact_mut(step));
            for (row, (gates, ups)) in rows.zip(sums) {
                Gated::write(self, row, columns.clone(), gates, ups);
            }
            return;
        }
        self.activation.with(TileRows { gated: self, rows, columns, gates, ups, step });
    }
}

/// Epilogue of a tile of finite sums.
struct TileRows<'w, 'a, S> {
    gated: &'w Gated<'a, S, f32>,
    rows: Range<usize>,
    columns: Range<usize>,
    gates: &'w [f32],
    ups: &'w [f32],
    step: usize,
}

impl<S: Simd> WithActivation for TileRows<'_, '_, S> {
    #[inline(never)]
    fn run(self, activation: impl Gate) {
        let (s, count) = (self.gated.s, self.columns.len());
        s.vectorize(|| {
            for (index, row) in self.rows.enumerate() {
                let (gates, ups) = (&self.gates[index * self.step..], &self.ups[index * self.step..]);
                // SAFETY: tasks write disjoint rows or columns, and these columns are inside the row.
                let to = unsafe { self.gated.hidden.part(row, self.columns.clone()) };
                vectors!(S, count, |span| {
                    // SAFETY: gates, ups and outputs have this many elements.
                    unsafe {
                        let gate = <f32 as Float>::load(s, gates.as_ptr(), span);
                        let value = activation.product(s, gate, <f32 as Float>::load(s, ups.as_ptr(), span));
                        <f32 as Float>::store(s, to.as_mut_ptr(), span, value);
                    }
                });
            }
        });
    }
}

impl<S: Simd, T: Float> GemmOperands for Gated<'_, S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let row =
            |index: usize| (rows.start + index < self.x.count()).then(|| self.x.row(rows.start + index));
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(self.s, rows.len(), rows.len(), depth, row, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let first = block * GATE_COLUMNS;
        let row = |index: usize| {
            let (weight, column) = if index < GATE_COLUMNS {
                (&self.gate, first + index)
            } else {
                (&self.up, first + index - GATE_COLUMNS)
            };
            (column < weight.count()).then(|| weight.row(column))
        };
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(self.s, NC, nr::<S>(), depth, row, to) };
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * GATE_COLUMNS..((block + 1) * GATE_COLUMNS).min(self.gate.count());
        // SAFETY: the caller guarantees a block of NC elements; the ups of the block follow its gates.
        let (gates, ups) = unsafe {
            (
                std::slice::from_raw_parts_mut(from, columns.len()),
                std::slice::from_raw_parts_mut(from.add(GATE_COLUMNS), columns.len()),
            )
        };
        self.write(row, columns, gates, ups);
    }
}
