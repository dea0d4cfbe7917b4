//! `attention.gqa.prefill.ragged` and `attention.standard.prefill.ragged`: requests of different lengths,
//! concatenated.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    AttentionGqaPrefillRaggedCall, AttentionGqaPrefillRaggedKernel, AttentionGqaPrefillRaggedOut,
    AttentionStandardPrefillRaggedCall, AttentionStandardPrefillRaggedKernel,
    AttentionStandardPrefillRaggedOut,
};

use super::prefill::CallTensors;
use super::problem::{Sequence, Shape, Slopes, index_slice, lse_mut, rows, rows_mut, span};
use super::run::{Attend, Problem, run_ragged};
use crate::isa::require;
use crate::simd::with_float;

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaPrefillRagged<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct StandardPrefillRagged<S>(pub PhantomData<S>);

/// Shared body: the calls have the same fields, but different types.
macro_rules! ragged {
    ($call:ident, $out:ident, $S:ty, $kv_heads:expr) => {{
        let (call, mut out) = ($call, $out);
        let s = require::<$S>()?;
        let axes = &call.axes;
        let kv_heads = $kv_heads as usize;
        let shape = Shape {
            kv_heads,
            group: axes.heads as usize / kv_heads.max(1),
            dims: [axes.head_dim as usize, 0],
            dim_v: axes.head_dim_v as usize,
            shared: false,
            scale: call.sm_scale,
            soft_cap: call.soft_cap,
            causal: call.causal,
            window_left: call.window_left,
            window_right: call.window_right,
        };
        let (qo_indptr, kv_indptr) = (index_slice(&call.qo_indptr, &[])?, index_slice(&call.kv_indptr, &[])?);
        with_float!(call.dtype_t, T => {
            let tensors = CallTensors {
                q: rows::<T>(&call.q, 0, 1)?,
                k: rows::<T>(&call.k, 0, 1)?,
                v: rows::<T>(&call.v, 0, 1)?,
                output: rows_mut::<T>(&mut out.output, 0, 1)?,
                lse: lse_mut(out.lse.as_mut(), 0, 1)?,
            };
            let slopes = call.alibi_slopes;
            let sequence = |b: usize| {
                let tensors = &tensors;
                let (queries, keys) = (span(qo_indptr, b, axes.total_q), span(kv_indptr, b, axes.total_k));
                let (count, length) = (queries.end - queries.start, keys.end - keys.start);
                Sequence {
                    q: tensors.q.from(queries.start),
                    k: tensors.k.from(keys.start),
                    v: tensors.v.from(keys.start),
                    output: tensors.output.from(queries.start),
                    lse: tensors.lse.from(queries.start),
                    slopes: slopes.as_ref().map(|slopes| Slopes::new(slopes, b)),
                    ..tensors.sequence(0, count, length, length - count)
                }
            };
            let problem = Problem { shape, sequences: axes.batch as usize, sequence: &sequence };
            run_ragged(s, &problem, qo_indptr);
            Ok(())
        })
    }};
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.ragged",
    operation = "attention.gqa.prefill.ragged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionGqaPrefillRaggedKernel for GqaPrefillRagged<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillRaggedCall<'_>,
        out: AttentionGqaPrefillRaggedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        ragged!(call, out, S, call.axes.kv_heads)
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.standard.prefill.ragged",
    operation = "attention.standard.prefill.ragged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionStandardPrefillRaggedKernel for StandardPrefillRagged<S> {
    fn run(
        &self,
        call: &AttentionStandardPrefillRaggedCall<'_>,
        out: AttentionStandardPrefillRaggedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        ragged!(call, out, S, call.axes.heads)
    }
}
