//! `attention.cross.prefill`: no causal order between queries and keys, but lengths and masks.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    AttentionCrossPrefillCall, AttentionCrossPrefillKernel, AttentionCrossPrefillLayout,
    AttentionCrossPrefillOut,
};

use super::prefill::CallTensors;
use super::problem::{Mask, Sequence, Shape, index_slice};
use super::run::{Attend, Problem, run};
use crate::isa::require;
use crate::simd::with_float;

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct CrossPrefill<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.attention.cross.prefill",
    operation = "attention.cross.prefill",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Attend> AttentionCrossPrefillKernel for CrossPrefill<S> {
    fn run(
        &self,
        call: &AttentionCrossPrefillCall<'_>,
        mut out: AttentionCrossPrefillOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let dims = if call.layout == AttentionCrossPrefillLayout::Bhsd { (2, 1) } else { (1, 2) };
        let shape = Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim_v, call.sm_scale);
        let lens = call.kv_lens.as_ref().map(|lens| index_slice(lens, &[])).transpose()?;
        with_float!(call.dtype_t, T => {
            let (output, lse) = (&mut out.output, out.lse.as_mut());
            let tensors = CallTensors::<T>::new([&call.q, &call.k, &call.v], output, lse, [dims, dims])?;
            let mask = call.mask;
            let sequence = |b: usize| {
                let keys = lens.map_or(axes.seq_k, |lens| i64::from(lens[b]).clamp(0, axes.seq_k));
                Sequence {
                    mask: mask.as_ref().map(|mask| Mask::new(mask, b, 4)),
                    ..tensors.sequence(b, axes.seq_q, keys, 0)
                }
            };
            run(s, &Problem { shape, sequences: axes.batch as usize, sequence: &sequence }, None);
            Ok(())
        })
    }
}
