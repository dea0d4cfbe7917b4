//! `attention.gqa.prefill` and its specialization `attention.standard.prefill`: whole sequences over contiguous
//! keys and values.

use std::marker::PhantomData;

use lz_core::{KernelError, Run, TensorMut, TensorView};
use lz_ops::{
    AttentionGqaPrefillCall, AttentionGqaPrefillKernel, AttentionGqaPrefillLayout, AttentionGqaPrefillOut,
    AttentionStandardPrefillKernel,
};

use super::problem::{KvLayout, Mask, Rows, Sequence, Shape, Sinks, Slopes, lse_mut, rows, rows_mut};
use super::run::{Attend, Problem, run};
use crate::isa::require;
use crate::simd::{Float, with_float};

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaPrefill<S>(pub PhantomData<S>);

/// The tensors of a call whose outermost dimension is the batch.
#[derive(Clone, Copy)]
pub(super) struct CallTensors<T> {
    pub q: Rows<T>,
    pub k: Rows<T>,
    pub v: Rows<T>,
    pub output: Rows<T>,
    pub lse: Rows<f32>,
}

// SAFETY: addresses of tensors that the call borrows; each row of an output is written by one task.
unsafe impl<T> Sync for CallTensors<T> {}

impl<T: Float> CallTensors<T> {
    /// Of queries, keys and values; `dims` are the dimensions of positions and heads, first of queries and outputs, then of
    /// keys and values.
    pub(super) fn new(
        [q, k, v]: [&TensorView<'_>; 3],
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        dims: [(usize, usize); 2],
    ) -> Result<CallTensors<T>, KernelError> {
        let [(position, head), (key, kv_head)] = dims;
        Ok(CallTensors {
            q: rows(q, position, head)?,
            k: rows(k, key, kv_head)?,
            v: rows(v, key, kv_head)?,
            output: rows_mut(output, position, head)?,
            lse: lse_mut(lse, position, head)?,
        })
    }

    pub(super) fn sequence(&self, b: usize, queries: i64, keys: i64, offset: i64) -> Sequence<'static, T> {
        Sequence {
            queries: queries as usize,
            keys: keys as usize,
            offset,
            q: self.q.outer(b),
            q_second: Rows::NONE,
            k: self.k.outer(b),
            k_second: Rows::NONE,
            v: self.v.outer(b),
            kv_layout: KvLayout::Dense,
            mask: None,
            slopes: None,
            sinks: None,
            output: self.output.outer(b),
            lse: self.lse.outer(b),
        }
    }
}

/// Calls `attend` with the sequences of a call.
pub(super) fn with_problem<T: Float>(
    call: &AttentionGqaPrefillCall<'_>,
    out: &mut AttentionGqaPrefillOut<'_>,
    attend: impl FnOnce(&Problem<'_, '_, T>),
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let dims = if call.layout == AttentionGqaPrefillLayout::Bhsd { (2, 1) } else { (1, 2) };
    let shape = Shape {
        soft_cap: call.soft_cap,
        causal: call.causal,
        window_left: call.window_left,
        window_right: call.window_right,
        ..Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim_v, call.sm_scale)
    };
    let (output, lse) = (&mut out.output, out.lse.as_mut());
    let tensors = CallTensors::<T>::new([&call.q, &call.k, &call.v], output, lse, [dims, dims])?;
    let (mask, slopes) = (call.mask, call.alibi_slopes);
    let sinks = call.sinks.as_ref().map(Sinks::new);
    let sequence = |b: usize| Sequence {
        mask: mask.as_ref().map(|mask| Mask::new(mask, b, 4)),
        slopes: slopes.as_ref().map(|slopes| Slopes::new(slopes, b)),
        sinks,
        ..tensors.sequence(b, axes.seq_q, axes.seq_k, call.causal_offset)
    };
    attend(&Problem { shape, sequences: axes.batch as usize, sequence: &sequence });
    Ok(())
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill",
    operation = "attention.gqa.prefill",
    specialized = "attention.standard.prefill",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits(
        "head_dim <= 256" => HEAD_DIM_TOO_LARGE,
        "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE,
        "not given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED
    ),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Attend> AttentionGqaPrefillKernel for GqaPrefill<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillCall<'_>,
        mut out: AttentionGqaPrefillOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        with_float!(call.dtype_t, T => with_problem::<T>(call, &mut out, |problem| run(s, problem, None)))
    }
}
