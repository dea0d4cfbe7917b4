//! `attention.gqa.decode`, `attention.standard.decode` and `attention.cross.decode`: one query per sequence,
//! contiguous KV cache. Long sequences are split over keys (split-KV); a few keys take the `short` path.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    AttentionCrossDecodeCall, AttentionCrossDecodeKernel, AttentionCrossDecodeLayout,
    AttentionCrossDecodeOut, AttentionGqaDecodeCall, AttentionGqaDecodeKernel, AttentionGqaDecodeLayout,
    AttentionGqaDecodeOut, AttentionStandardDecodeCall, AttentionStandardDecodeKernel,
    AttentionStandardDecodeLayout, AttentionStandardDecodeOut,
};

use super::prefill::CallTensors;
use super::problem::{Mask, Sequence, Shape, Slopes, index_slice, lse_mut, rows, rows_mut};
use super::run::{Attend, CHUNK, Problem, Split, run};
use super::short;
use crate::isa::require;
use crate::simd::with_float;

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaDecode<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct StandardDecode<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct CrossDecode<S>(pub PhantomData<S>);

/// Shared body: the calls have the same fields, but different types.
macro_rules! decode {
    (
        $call:ident, $out:ident, $run:ident, $S:ty,
        kv_heads: $kv_heads:expr, heads_first: $heads_first:expr, window_left: $window_left:expr, soft_cap: $soft_cap:expr,
        slopes: $slopes:expr, mask: $mask:expr
    ) => {{
        let (call, mut out) = ($call, $out);
        let s = require::<$S>()?;
        let axes = &call.axes;
        let kv_heads = $kv_heads as usize;
        let (position, head) = if $heads_first { (2, 1) } else { (1, 2) };
        let shape = Shape {
            kv_heads,
            group: axes.heads as usize / kv_heads.max(1),
            dims: [axes.head_dim as usize, 0],
            dim_v: axes.head_dim_v as usize,
            shared: false,
            scale: call.sm_scale,
            soft_cap: $soft_cap,
            causal: false,
            window_left: $window_left,
            window_right: -1,
        };
        let lens = call.kv_lens.as_ref().map(|lens| index_slice(lens, &[])).transpose()?;
        with_float!(call.dtype_t, T => {
            let tensors = CallTensors {
                q: rows::<T>(&call.q, 0, 1)?,
                k: rows::<T>(&call.k, position, head)?,
                v: rows::<T>(&call.v, position, head)?,
                output: rows_mut::<T>(&mut out.output, 0, 1)?,
                lse: lse_mut(out.lse.as_mut(), 0, 1)?,
            };
            let (mask, slopes): (Option<lz_core::TensorView<'_>>, Option<lz_core::TensorView<'_>>) = ($mask, $slopes);
            let sequence = |b: usize| {
                let keys = lens.map_or(axes.seq_k, |lens| i64::from(lens[b]).clamp(0, axes.seq_k));
                Sequence {
                    mask: mask.as_ref().map(|mask| Mask::new(mask, b, 3)),
                    slopes: slopes.as_ref().map(|slopes| Slopes::new(slopes, b)),
                    ..tensors.sequence(b, 1, keys, keys - 1)
                }
            };
            let problem = Problem { shape, sequences: axes.batch as usize, sequence: &sequence };
            if axes.seq_k as usize <= short::KEYS && mask.is_none() && slopes.is_none() && short::supports(&shape) {
                short::run(s, &problem);
                return Ok(());
            }
            let parts = (axes.seq_k as usize).div_ceil(CHUNK);
            if parts > 1 {
                let states = (axes.batch * axes.heads) as usize * parts;
                let bytes = states * (shape.dim_v + 2) * size_of::<f32>();
                let first_part = |b: usize| b * parts;
                let workspace = $run.workspace(bytes as u64)?;
                run(s, &problem, Some(Split { chunk: CHUNK, workspace, first_part: &first_part }));
            } else {
                run(s, &problem, None);
            }
            Ok(())
        })
    }};
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.decode",
    operation = "attention.gqa.decode",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    workspace = "min(ceil_div(seq_k, 256) - 1, 1) * ceil_div(seq_k, 256) * batch * heads * (head_dim_v + 2) * 4"
)]
impl<S: Attend> AttentionGqaDecodeKernel for GqaDecode<S> {
    fn run(
        &self,
        call: &AttentionGqaDecodeCall<'_>,
        out: AttentionGqaDecodeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        decode!(
            call, out, run, S,
            kv_heads: call.axes.kv_heads, heads_first: call.layout == AttentionGqaDecodeLayout::Bhsd,
            window_left: call.window_left, soft_cap: call.soft_cap, slopes: call.alibi_slopes, mask: None
        )
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.standard.decode",
    operation = "attention.standard.decode",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    workspace = "min(ceil_div(seq_k, 256) - 1, 1) * ceil_div(seq_k, 256) * batch * heads * (head_dim_v + 2) * 4"
)]
impl<S: Attend> AttentionStandardDecodeKernel for StandardDecode<S> {
    fn run(
        &self,
        call: &AttentionStandardDecodeCall<'_>,
        out: AttentionStandardDecodeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        decode!(
            call, out, run, S,
            kv_heads: call.axes.heads, heads_first: call.layout == AttentionStandardDecodeLayout::Bhsd,
            window_left: call.window_left, soft_cap: call.soft_cap, slopes: call.alibi_slopes, mask: None
        )
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
    workspace = "min(ceil_div(seq_k, 256) - 1, 1) * ceil_div(seq_k, 256) * batch * heads * (head_dim_v + 2) * 4"
)]
impl<S: Attend> AttentionCrossDecodeKernel for CrossDecode<S> {
    fn run(
        &self,
        call: &AttentionCrossDecodeCall<'_>,
        out: AttentionCrossDecodeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        decode!(
            call, out, run, S,
            kv_heads: call.axes.kv_heads, heads_first: call.layout == AttentionCrossDecodeLayout::Bhsd,
            window_left: -1, soft_cap: 0.0, slopes: None, mask: call.mask
        )
    }
}
