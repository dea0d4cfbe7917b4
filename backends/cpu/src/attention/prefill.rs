//! `attention.gqa.prefill` and `attention.standard.prefill`: whole sequences over contiguous keys and values.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    AttentionGqaPrefillCall, AttentionGqaPrefillKernel, AttentionGqaPrefillLayout, AttentionGqaPrefillOut,
    AttentionStandardPrefillCall, AttentionStandardPrefillKernel, AttentionStandardPrefillLayout,
    AttentionStandardPrefillOut,
};

use super::problem::{KvLayout, Mask, Rows, Sequence, Shape, Slopes, lse_mut, rows, rows_mut};
use super::run::{Attend, Problem, run};
use crate::isa::require;
use crate::simd::{Float, with_float};

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaPrefill<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct StandardPrefill<S>(pub PhantomData<S>);

/// Shared body: the calls have the same fields, but different types.
macro_rules! prefill {
    ($call:expr, $out:expr, $kv_heads:expr, $heads_first:expr, $S:ty) => {{
        let (call, mut out) = ($call, $out);
        let s = require::<$S>()?;
        let axes = &call.axes;
        let (kv_heads, heads_first) = ($kv_heads as usize, $heads_first);
        let (position, head) = if heads_first { (2, 1) } else { (1, 2) };
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
        with_float!(call.dtype_t, T => {
            let (q, k, v) = (
                rows::<T>(&call.q, position, head)?,
                rows::<T>(&call.k, position, head)?,
                rows::<T>(&call.v, position, head)?,
            );
            let output = rows_mut::<T>(&mut out.output, position, head)?;
            let lse = lse_mut(out.lse.as_mut(), position, head)?;
            let tensors = CallTensors { q, k, v, output, lse };
            let (mask, slopes) = (call.mask, call.alibi_slopes);
            let sequence = |b: usize| Sequence {
                mask: mask.as_ref().map(|mask| Mask::new(mask, b, 4)),
                slopes: slopes.as_ref().map(|slopes| Slopes::new(slopes, b)),
                ..tensors.sequence(b, axes.seq_q, axes.seq_k, call.causal_offset)
            };
            run(s, &Problem { shape, sequences: axes.batch as usize, sequence: &sequence }, None);
            Ok(())
        })
    }};
}

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
            output: self.output.outer(b),
            lse: self.lse.outer(b),
        }
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill",
    operation = "attention.gqa.prefill",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionGqaPrefillKernel for GqaPrefill<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillCall<'_>,
        out: AttentionGqaPrefillOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        prefill!(call, out, call.axes.kv_heads, call.layout == AttentionGqaPrefillLayout::Bhsd, S)
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.standard.prefill",
    operation = "attention.standard.prefill",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionStandardPrefillKernel for StandardPrefill<S> {
    fn run(
        &self,
        call: &AttentionStandardPrefillCall<'_>,
        out: AttentionStandardPrefillOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        prefill!(call, out, call.axes.heads, call.layout == AttentionStandardPrefillLayout::Bhsd, S)
    }
}
