//! `attention.linear.prefill` and `attention.linear.decode`: queries and keys are converted once for all heads that
//! share them, then the recurrence runs.

use std::marker::PhantomData;

use lz_core::{KernelError, Run, TensorMut, TensorView};
use lz_ops::{
    AttentionLinearDecodeCall, AttentionLinearDecodeGate, AttentionLinearDecodeKernel,
    AttentionLinearDecodeOut, AttentionLinearPrefillCall, AttentionLinearPrefillGate,
    AttentionLinearPrefillKernel, AttentionLinearPrefillOut,
};

use super::engine::{ExactPosition, LogDecay, Prepared, Recurrence, States, scratch_elements};
use crate::isa::require;
use crate::memory;
use crate::rows::{AnyRows, Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Dense rows of any float type.
#[derive(Debug)]
pub(crate) struct LinearPrefill<S>(pub PhantomData<S>);

/// Dense rows of any float type.
#[derive(Debug)]
pub(crate) struct LinearDecode<S>(pub PhantomData<S>);

/// Added to the sum of squares before its root.
const L2_EPS: f64 = 1e-6;

#[lz_macros::kernel(
    id = "cpu.attention.linear.prefill",
    operation = "attention.linear.prefill",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], B = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "(batch * seq * key_heads * (2 * key_dim + 2) + min(batch * heads * value_dim, 64) * (69 * key_dim + 256)) * 4"
)]
impl<S: Simd> AttentionLinearPrefillKernel for LinearPrefill<S> {
    fn run(
        &self,
        call: &AttentionLinearPrefillCall<'_>,
        mut out: AttentionLinearPrefillOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let axes = &call.axes;
        let views = Views {
            inputs: [&call.q, &call.k, &call.v, &call.g, &call.beta],
            initial: call.initial_state.as_ref(),
            sizes: [axes.batch, axes.seq, axes.heads, axes.key_heads].map(|size| size as usize),
            dims: [axes.key_dim, axes.value_dim].map(|size| size as usize),
            scale: call.scale,
            one_gate: call.gate == AttentionLinearPrefillGate::Head,
            l2norm: call.qk_l2norm,
        };
        let s = require::<S>()?;
        with_float!(call.dtype_t, T => {
            views.run::<S, T>(s, &mut out.output, out.final_state.as_mut(), false, run)
        })
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.linear.decode",
    operation = "attention.linear.decode",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], B = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "(batch * key_heads * (2 * key_dim + 2) + min(batch * heads * value_dim, 64) * (69 * key_dim + 256)) * 4"
)]
impl<S: Simd> AttentionLinearDecodeKernel for LinearDecode<S> {
    fn run(
        &self,
        call: &AttentionLinearDecodeCall<'_>,
        mut out: AttentionLinearDecodeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let axes = &call.axes;
        let views = Views {
            inputs: [&call.q, &call.k, &call.v, &call.g, &call.beta],
            initial: None,
            sizes: [axes.batch, 1, axes.heads, axes.key_heads].map(|size| size as usize),
            dims: [axes.key_dim, axes.value_dim].map(|size| size as usize),
            scale: call.scale,
            one_gate: call.gate == AttentionLinearDecodeGate::Head,
            l2norm: call.qk_l2norm,
        };
        let s = require::<S>()?;
        with_float!(call.dtype_t, T => {
            views.run::<S, T>(s, &mut out.output, Some(&mut out.state), true, run)
        })
    }
}

/// The arguments of either operation.
struct Views<'a> {
    /// q, k, v, g and beta.
    inputs: [&'a TensorView<'a>; 5],
    initial: Option<&'a TensorView<'a>>,
    /// Batch, positions, heads and key heads.
    sizes: [usize; 4],
    /// Features of keys and of values.
    dims: [usize; 2],
    scale: f32,
    one_gate: bool,
    l2norm: bool,
}

impl Views<'_> {
    fn run<S: Simd, T: Float>(
        &self,
        s: S,
        output: &mut TensorMut<'_>,
        state: Option<&mut TensorMut<'_>>,
        in_place: bool,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let [q, k, v, g, beta] = self.inputs;
        let (q, k, v) = (Rows::<T>::new(q)?, Rows::<T>::new(k)?, Rows::<T>::new(v)?);
        let gates = Rows::<f32>::shaped(g, if self.one_gate { Shape::Elements } else { Shape::Last })?;
        let beta = AnyRows::new(beta, Shape::Elements)?;
        let kind = beta.kind()?;
        let y = RowsMut::<T>::new(output)?;
        let last = state.map(RowsMut::<f32>::new).transpose()?;
        let initial = self.initial.map(Rows::<f32>::new).transpose()?;
        let ([batch, seq, heads, key_heads], [key_dim, value_dim]) = (self.sizes, self.dims);
        let elements = batch * seq * key_heads * Prepared::width(key_dim);
        let scratch = scratch_elements(batch * heads * value_dim, key_dim);
        let workspace = run.workspace(((elements + scratch) * size_of::<f32>()) as u64)?.as_mut_ptr().cast();
        let prepared = Prepared { start: workspace, key_dim };
        for_each_range(q.count(), 4 * key_dim * size_of::<f32>(), &|range| {
            for row in range {
                // SAFETY: the workspace has space for every row, and each belongs to one task.
                let to = unsafe { prepared.row(row) };
                let (to_q, rest) = to.split_at_mut(key_dim);
                let (to_k, products) = rest.split_at_mut(key_dim);
                convert(s, q.row(row), self.l2norm, to_q);
                convert(s, k.row(row), self.l2norm, to_k);
                products.copy_from_slice(&[dot(s, to_q, to_k), dot(s, to_k, to_k)]);
            }
        });
        // SAFETY: there is an element for every batch row, position and head.
        let factor = |row: usize| unsafe { kind.get(beta.start(row), 0) };
        let exact = |key_row: usize, row: usize| {
            let decay = |i: usize| f64::from(gates.row(row)[if self.one_gate { 0 } else { i }]).exp();
            Ok(ExactPosition {
                q: exact_row(q.row(key_row), self.l2norm)?,
                k: exact_row(k.row(key_row), self.l2norm)?,
                decay: memory::collect(key_dim, (0..key_dim).map(decay))?,
                factor: f64::from(factor(row)),
            })
        };
        let gate = |row: usize| gates.row(row)[0];
        let recurrence = Recurrence {
            s,
            sizes: self.sizes,
            key_dim,
            value_dim,
            prepared,
            log_decay: if self.one_gate { LogDecay::One(&gate) } else { LogDecay::Each(gates) },
            delta_rule: true,
            factor: &factor,
            v,
            y: &y,
            states: States { initial, last: last.as_ref(), in_place, transposed: false, dims: self.dims },
            scale: self.scale,
            skip: None,
            exact: &exact,
        };
        recurrence.run(workspace.wrapping_add(elements))
    }
}

/// `1 / sqrt(Σ x² + 1e-6)`, or 1.
fn row_scale<T: Float>(row: &[T], l2norm: bool) -> f64 {
    if !l2norm {
        return 1.0;
    }
    1.0 / (row.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum::<f64>() + L2_EPS).sqrt()
}

fn exact_row<T: Float>(row: &[T], l2norm: bool) -> Result<Vec<f64>, KernelError> {
    let scale = row_scale(row, l2norm);
    memory::collect(row.len(), row.iter().map(|x| f64::from(x.to_f32()) * scale))
}

/// Converts a row to f32, normalized on request.
pub(super) fn convert<S: Simd, T: Float>(s: S, row: &[T], l2norm: bool, to: &mut [f32]) {
    let scale = row_scale(row, l2norm) as f32;
    s.vectorize(|| {
        vectors!(S, row.len(), |span| {
            // SAFETY: both rows have this many elements.
            unsafe {
                let value = s.mul(T::load(s, row.as_ptr(), span), s.splat(scale));
                <f32 as Float>::store(s, to.as_mut_ptr(), span, value);
            }
        });
    });
}

pub(super) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    s.vectorize(|| {
        let mut sum = s.splat(0.0);
        vectors!(S, a.len(), |span| {
            // SAFETY: both rows have this many elements.
            unsafe {
                let (a, b) =
                    (<f32 as Float>::load(s, a.as_ptr(), span), <f32 as Float>::load(s, b.as_ptr(), span));
                sum = s.fma(a, b, sum);
            }
        });
        s.sum(sum)
    })
}
