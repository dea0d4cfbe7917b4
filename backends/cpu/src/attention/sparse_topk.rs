//! `attention.sparse.topk`: reads only the listed keys of each query. All heads that share a key head are one task.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{KernelError, Run};
use lz_ops::{AttentionSparseTopkCall, AttentionSparseTopkKernel, AttentionSparseTopkOut};

use super::prefill::CallTensors;
use super::problem::{Shape, index_slice, lse_mut, rows, rows_mut};
use super::run::{Attend, attend_to, for_each};
use crate::isa::require;
use crate::simd::with_float;

/// Head dimension up to 576, any float type.
#[derive(Debug)]
pub(crate) struct SparseTopk<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.attention.sparse.topk",
    operation = "attention.sparse.topk",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 576" => HEAD_DIM_TOO_LARGE, "head_dim_v <= 512" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Attend> AttentionSparseTopkKernel for SparseTopk<S> {
    fn run(
        &self,
        call: &AttentionSparseTopkCall<'_>,
        mut out: AttentionSparseTopkOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let shape = Shape {
            soft_cap: call.soft_cap,
            ..Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim_v, call.sm_scale)
        };
        let indices = &call.indices;
        // Reports an index tensor that cannot be read before anything is written.
        if axes.m > 0 {
            index_slice(indices, &[0, 0])?;
        }
        with_float!(call.dtype_t, T => {
            let tensors = CallTensors {
                q: rows::<T>(&call.q, 0, 1)?,
                k: rows::<T>(&call.k, 0, 1)?,
                v: rows::<T>(&call.v, 0, 1)?,
                output: rows_mut::<T>(&mut out.output, 0, 1)?,
                lse: lse_mut(out.lse.as_mut(), 0, 1)?,
            };
            let task = |number: usize| {
                let tensors = &tensors;
                let (query, head) = (number / shape.kv_heads, number % shape.kv_heads);
                let listed = index_slice(indices, &[query as i64, head as i64]).unwrap_or(&[]);
                let ranges = |take: &mut dyn FnMut(Range<usize>)| {
                    for &index in listed {
                        if let Ok(key) = usize::try_from(index)
                            && key < axes.n as usize
                        {
                            take(key..key + 1);
                        }
                    }
                };
                let rows = query * shape.group..(query + 1) * shape.group;
                attend_to(s, &shape, &tensors.sequence(0, axes.m, axes.n, 0), head, rows, &ranges);
            };
            let work = (axes.heads * axes.m * axes.topk).saturating_mul(axes.head_dim + axes.head_dim_v);
            for_each(work as usize, axes.m as usize * shape.kv_heads, &task);
            Ok(())
        })
    }
}
