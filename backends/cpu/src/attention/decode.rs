//! `attention.gqa.decode`, its specialization `attention.standard.decode`, and `attention.cross.decode`: one
//! query per sequence, contiguous KV cache. Long sequences are split over keys (split-KV); a few keys take the
//! `short` path.

use std::marker::PhantomData;

use lz_core::{KernelError, Run, TensorMut, TensorView};
use lz_ops::{
    AttentionCrossDecodeCall, AttentionCrossDecodeKernel, AttentionCrossDecodeLayout,
    AttentionCrossDecodeOut, AttentionGqaDecodeCall, AttentionGqaDecodeKernel, AttentionGqaDecodeLayout,
    AttentionGqaDecodeOut, AttentionStandardDecodeKernel,
};

use super::prefill::CallTensors;
use super::problem::{Mask, Sequence, Shape, Sinks, Slopes, index_slice};
use super::run::{Attend, CHUNK, Problem, Split, run};
use super::short;
use crate::isa::require;
use crate::simd::{Float, with_float};

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaDecode<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct CrossDecode<S>(pub PhantomData<S>);

/// The inputs of a call of any of the operations.
pub(super) struct Decode<'a> {
    /// Queries, keys and values.
    tensors: [&'a TensorView<'a>; 3],
    kv_lens: Option<&'a TensorView<'a>>,
    mask: Option<&'a TensorView<'a>>,
    slopes: Option<&'a TensorView<'a>>,
    sinks: Option<&'a TensorView<'a>>,
    shape: Shape,
    batch: i64,
    seq_k: i64,
    /// Whether heads precede positions in keys and values.
    heads_first: bool,
}

impl<'a> Decode<'a> {
    /// Of a call with grouped heads.
    pub(super) fn grouped(call: &'a AttentionGqaDecodeCall<'a>) -> Decode<'a> {
        let axes = &call.axes;
        Decode {
            tensors: [&call.q, &call.k, &call.v],
            kv_lens: call.kv_lens.as_ref(),
            mask: None,
            slopes: call.alibi_slopes.as_ref(),
            sinks: call.sinks.as_ref(),
            shape: Shape {
                soft_cap: call.soft_cap,
                window_left: call.window_left,
                ..Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim_v, call.sm_scale)
            },
            batch: axes.batch,
            seq_k: axes.seq_k,
            heads_first: call.layout == AttentionGqaDecodeLayout::Bhsd,
        }
    }

    /// Calls `attend` with the sequences.
    pub(super) fn with_problem<T: Float>(
        &self,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        attend: impl FnOnce(&Problem<'_, '_, T>) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let Decode { mask, slopes, shape, batch, seq_k, .. } = *self;
        let lens = self.kv_lens.map(|lens| index_slice(lens, &[])).transpose()?;
        let key_dims = if self.heads_first { (2, 1) } else { (1, 2) };
        let tensors = CallTensors::<T>::new(self.tensors, output, lse, [(0, 1), key_dims])?;
        let sinks = self.sinks.map(Sinks::new);
        let sequence = |b: usize| {
            let keys = lens.map_or(seq_k, |lens| i64::from(lens[b]).clamp(0, seq_k));
            Sequence {
                mask: mask.map(|mask| Mask::new(mask, b, 3)),
                slopes: slopes.map(|slopes| Slopes::new(slopes, b)),
                sinks,
                ..tensors.sequence(b, 1, keys, keys - 1)
            }
        };
        attend(&Problem { shape, sequences: batch as usize, sequence: &sequence })
    }

    fn run<S: Attend, T: Float>(
        &self,
        s: S,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        resources: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        self.with_problem::<T>(output, lse, |problem| self.attend(s, problem, resources))
    }

    /// Splits long sequences over keys; a few keys take the short path.
    fn attend<S: Attend, T: Float>(
        &self,
        s: S,
        problem: &Problem<'_, '_, T>,
        resources: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let Decode { mask, slopes, shape, batch, seq_k, .. } = *self;
        if seq_k as usize <= short::KEYS && mask.is_none() && slopes.is_none() && short::supports(&shape) {
            short::run(s, problem);
            return Ok(());
        }
        let parts = (seq_k as usize).div_ceil(CHUNK);
        if parts > 1 {
            let states = batch as usize * shape.kv_heads * shape.group * parts;
            let workspace = resources.workspace((states * (shape.dim_v + 2) * size_of::<f32>()) as u64)?;
            let first_part = |b: usize| b * parts;
            run(s, problem, Some(Split { chunk: CHUNK, workspace, first_part: &first_part }));
        } else {
            run(s, problem, None);
        }
        Ok(())
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.decode",
    operation = "attention.gqa.decode",
    specialized = "attention.standard.decode",
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
    batch_invariant = true,
    workspace = "min(ceil_div(seq_k, 256) - 1, 1) * ceil_div(seq_k, 256) * batch * heads * (head_dim_v + 2) * 4"
)]
impl<S: Attend> AttentionGqaDecodeKernel for GqaDecode<S> {
    fn run(
        &self,
        call: &AttentionGqaDecodeCall<'_>,
        mut out: AttentionGqaDecodeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let decode = Decode::grouped(call);
        with_float!(call.dtype_t, T => decode.run::<S, T>(s, &mut out.output, out.lse.as_mut(), run))
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.cross.decode",
    operation = "attention.cross.decode",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "min(ceil_div(seq_k, 256) - 1, 1) * ceil_div(seq_k, 256) * batch * heads * (head_dim_v + 2) * 4"
)]
impl<S: Attend> AttentionCrossDecodeKernel for CrossDecode<S> {
    fn run(
        &self,
        call: &AttentionCrossDecodeCall<'_>,
        mut out: AttentionCrossDecodeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let decode = Decode {
            tensors: [&call.q, &call.k, &call.v],
            kv_lens: call.kv_lens.as_ref(),
            mask: call.mask.as_ref(),
            slopes: None,
            sinks: None,
            shape: Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim_v, call.sm_scale),
            batch: axes.batch,
            seq_k: axes.seq_k,
            heads_first: call.layout == AttentionCrossDecodeLayout::Bhsd,
        };
        with_float!(call.dtype_t, T => decode.run::<S, T>(s, &mut out.output, out.lse.as_mut(), run))
    }
}
