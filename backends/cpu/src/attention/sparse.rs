//! `attention.sparse.block` and `attention.sparse.variable_block`: reads only the keys of the listed blocks.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::element::Bool;
use lz_core::{KernelError, Run};
use lz_ops::{
    AttentionSparseBlockCall, AttentionSparseBlockKernel, AttentionSparseBlockOut,
    AttentionSparseVariableBlockCall, AttentionSparseVariableBlockKernel, AttentionSparseVariableBlockOut,
};

use super::prefill::CallTensors;
use super::problem::{Shape, index_slice, lse_mut, rows, rows_mut, span};
use super::run::{Attend, attend_to, for_each};
use crate::isa::require;
use crate::simd::with_float;

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct SparseBlock<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct SparseVariableBlock<S>(pub PhantomData<S>);

fn shape(heads: i64, kv_heads: i64, head_dim: i64, scale: f32, soft_cap: f32) -> Shape {
    Shape {
        kv_heads: kv_heads as usize,
        group: (heads / kv_heads.max(1)) as usize,
        dims: [head_dim as usize, 0],
        dim_v: head_dim as usize,
        shared: false,
        scale,
        exact_scale: f64::from(scale),
        soft_cap,
        causal: false,
        window_left: -1,
        window_right: -1,
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.sparse.block",
    operation = "attention.sparse.block",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionSparseBlockKernel for SparseBlock<S> {
    fn run(
        &self,
        call: &AttentionSparseBlockCall<'_>,
        mut out: AttentionSparseBlockOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let shape = shape(axes.heads, axes.kv_heads, axes.head_dim, call.sm_scale, call.soft_cap);
        let (indptr, indices) = (index_slice(&call.indptr, &[])?, index_slice(&call.indices, &[])?);
        let block_rows = call.block_rows.clamp(1, axes.m.max(1)) as usize;
        let blocks = (axes.m as usize).div_ceil(block_rows);
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
                let (block, head) = (number / shape.kv_heads, number % shape.kv_heads);
                let listed = span(indptr, block, indices.len() as i64);
                let ranges = |take: &mut dyn FnMut(Range<usize>)| {
                    for &index in &indices[listed.start as usize..listed.end as usize] {
                        let start = i64::from(index).saturating_mul(call.block_cols).clamp(0, axes.n);
                        take(start as usize..start.saturating_add(call.block_cols).min(axes.n) as usize);
                    }
                };
                let queries = block * block_rows..((block + 1) * block_rows).min(axes.m as usize);
                let rows = queries.start * shape.group..queries.end * shape.group;
                attend_to(s, &shape, &tensors.sequence(0, axes.m, axes.n, 0), head, rows, &ranges);
            };
            let work = (axes.heads * axes.m * axes.head_dim) as usize * 64;
            for_each(work, blocks * shape.kv_heads, &task);
            Ok(())
        })
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.sparse.variable_block",
    operation = "attention.sparse.variable_block",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionSparseVariableBlockKernel for SparseVariableBlock<S> {
    fn run(
        &self,
        call: &AttentionSparseVariableBlockCall<'_>,
        mut out: AttentionSparseVariableBlockOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let shape = shape(axes.heads, axes.kv_heads, axes.head_dim, call.sm_scale, call.soft_cap);
        // One extra block: queries outside all blocks see no key.
        let blocks = axes.row_blocks as usize + 1;
        with_float!(call.dtype_t, T => {
            let tensors = CallTensors {
                q: rows::<T>(&call.q, 1, 0)?,
                k: rows::<T>(&call.k, 1, 0)?,
                v: rows::<T>(&call.v, 1, 0)?,
                output: rows_mut::<T>(&mut out.output, 1, 0)?,
                lse: lse_mut(out.lse.as_mut(), 1, 0)?,
            };
            let task = |number: usize| {
                let tensors = &tensors;
                let (head, block) = (number / blocks, number % blocks);
                let row_sizes = call.block_row_sizes.row::<i32>(&[head as i64]).unwrap_or(&[]);
                let col_sizes = call.block_col_sizes.row::<i32>(&[head as i64]).unwrap_or(&[]);
                let seen = call.block_mask.row::<Bool>(&[head as i64, block as i64]).unwrap_or(&[]);
                let ranges = |take: &mut dyn FnMut(Range<usize>)| {
                    for (keys, seen) in cut(col_sizes, axes.n as usize).zip(seen) {
                        if seen.0 != 0 {
                            take(keys);
                        }
                    }
                };
                let covered = cut(row_sizes, axes.m as usize).last().map_or(0, |queries| queries.end);
                let queries = cut(row_sizes, axes.m as usize).nth(block).unwrap_or(covered..axes.m as usize);
                let rows = queries.start * shape.group..queries.end * shape.group;
                attend_to(s, &shape, &tensors.sequence(0, axes.m, axes.n, 0), head, rows, &ranges);
            };
            let work = (axes.heads * axes.m * axes.head_dim) as usize * 64;
            for_each(work, blocks * shape.kv_heads, &task);
            Ok(())
        })
    }
}

/// The ranges that blocks of these sizes cover, in order, clamped to `total`.
fn cut(sizes: &[i32], total: usize) -> impl Iterator<Item = Range<usize>> + use<'_> {
    let mut end = 0usize;
    sizes.iter().map(move |&size| {
        let start = end;
        end = start.saturating_add(size.max(0) as usize).min(total);
        start..end
    })
}
