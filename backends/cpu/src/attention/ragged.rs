//! `attention.gqa.prefill.ragged` and its specialization `attention.standard.prefill.ragged`: requests of
//! different lengths, concatenated.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    AttentionGqaPrefillRaggedCall, AttentionGqaPrefillRaggedKernel, AttentionGqaPrefillRaggedOut,
    AttentionStandardPrefillRaggedKernel,
};

use super::prefill::CallTensors;
use super::problem::{Sequence, Shape, Sinks, Slopes, index_slice, span};
use super::run::{Attend, Problem, run_ragged};
use crate::isa::require;
use crate::simd::{Float, with_float};

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaPrefillRagged<S>(pub PhantomData<S>);

/// Calls `attend` with the requests of a call, and with the indptr of the queries.
pub(super) fn with_problem<T: Float>(
    call: &AttentionGqaPrefillRaggedCall<'_>,
    out: &mut AttentionGqaPrefillRaggedOut<'_>,
    attend: impl FnOnce(&Problem<'_, '_, T>, &[i32]),
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let shape = Shape {
        soft_cap: call.soft_cap,
        causal: call.causal,
        window_left: call.window_left,
        window_right: call.window_right,
        ..Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim_v, call.sm_scale)
    };
    let (qo_indptr, kv_indptr) = (index_slice(&call.qo_indptr, &[])?, index_slice(&call.kv_indptr, &[])?);
    let (output, lse) = (&mut out.output, out.lse.as_mut());
    let tensors = CallTensors::<T>::new([&call.q, &call.k, &call.v], output, lse, [(0, 1); 2])?;
    let slopes = call.alibi_slopes;
    let sinks = call.sinks.as_ref().map(Sinks::new);
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
            sinks,
            ..tensors.sequence(0, count, length, length - count)
        }
    };
    attend(&Problem { shape, sequences: axes.batch as usize, sequence: &sequence }, qo_indptr);
    Ok(())
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.ragged",
    operation = "attention.gqa.prefill.ragged",
    specialized = "attention.standard.prefill.ragged",
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
impl<S: Attend> AttentionGqaPrefillRaggedKernel for GqaPrefillRagged<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillRaggedCall<'_>,
        mut out: AttentionGqaPrefillRaggedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        with_float!(call.dtype_t, T => {
            with_problem::<T>(call, &mut out, |problem, qo_indptr| run_ragged(s, problem, qo_indptr))
        })
    }
}
