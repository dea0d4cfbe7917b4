//! `attention.mla.{prefill,decode,decode.paged}`: one latent per token is both key and value of all heads,
//! and is loaded once.

use std::marker::PhantomData;

use lz_core::{KernelError, Run, TensorMut, TensorView};
use lz_ops::{
    AttentionMlaDecodeCall, AttentionMlaDecodeKernel, AttentionMlaDecodeOut, AttentionMlaDecodePagedCall,
    AttentionMlaDecodePagedKernel, AttentionMlaDecodePagedOut, AttentionMlaPrefillCall,
    AttentionMlaPrefillKernel, AttentionMlaPrefillOut,
};

use super::paged::PageTable;
use super::problem::{KvLayout, Rows, Sequence, Shape, lse_mut, rows, rows_mut};
use super::run::{Attend, LONG_CHUNK, Problem, Split, run};
use crate::isa::require;
use crate::simd::{Float, with_float};

/// Latent dimension up to 512, rotary dimension up to 64, any float type.
#[derive(Debug)]
pub(crate) struct MlaPrefill<S>(pub PhantomData<S>);

/// Latent dimension up to 512, rotary dimension up to 64, any float type.
#[derive(Debug)]
pub(crate) struct MlaDecode<S>(pub PhantomData<S>);

/// Latent dimension up to 512, rotary dimension up to 64, any float type.
#[derive(Debug)]
pub(crate) struct MlaDecodePaged<S>(pub PhantomData<S>);

/// The tensors of a call: queries and keys in two parts (latent and rotary).
struct CallTensors<T> {
    q: [Rows<T>; 2],
    k: [Rows<T>; 2],
    output: Rows<T>,
    lse: Rows<f32>,
}

// SAFETY: addresses of tensors that the call borrows; each row of an output is written by one task.
unsafe impl<T> Sync for CallTensors<T> {}

impl<T: Float> CallTensors<T> {
    /// `key` is the dimension of positions of the keys.
    fn new(
        q: [&TensorView<'_>; 2],
        k: [&TensorView<'_>; 2],
        key: usize,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
    ) -> Result<CallTensors<T>, KernelError> {
        Ok(CallTensors {
            q: [rows(q[0], 0, 1)?, rows(q[1], 0, 1)?],
            k: [rows(k[0], key, 1)?, rows(k[1], key, 1)?],
            output: rows_mut(output, 0, 1)?,
            lse: lse_mut(lse, 0, 1)?,
        })
    }

    fn sequence(&self, queries: i64, keys: i64, offset: i64) -> Sequence<'static, T> {
        Sequence {
            queries: queries as usize,
            keys: keys as usize,
            offset,
            q: self.q[0],
            q_second: self.q[1],
            k: self.k[0],
            k_second: self.k[1],
            v: self.k[0],
            kv_layout: KvLayout::Dense,
            mask: None,
            slopes: None,
            sinks: None,
            output: self.output,
            lse: self.lse,
        }
    }
}

fn shape(heads: i64, dim_ckv: i64, dim_kpe: i64, scale: f32, causal: bool) -> Shape {
    Shape {
        kv_heads: 1,
        group: heads as usize,
        dims: [dim_ckv as usize, dim_kpe as usize],
        dim_v: dim_ckv as usize,
        shared: true,
        scale,
        exact_scale: f64::from(scale),
        soft_cap: 0.0,
        causal,
        window_left: -1,
        window_right: -1,
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.mla.prefill",
    operation = "attention.mla.prefill",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("dim_ckv <= 512" => HEAD_DIM_TOO_LARGE, "dim_kpe <= 64" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionMlaPrefillKernel for MlaPrefill<S> {
    fn run(
        &self,
        call: &AttentionMlaPrefillCall<'_>,
        mut out: AttentionMlaPrefillOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let shape = shape(axes.heads, axes.dim_ckv, axes.dim_kpe, call.sm_scale, call.causal);
        with_float!(call.dtype_t, T => {
            let (q, k) = ([&call.q_nope, &call.q_pe], [&call.ckv, &call.kpe]);
            let tensors = CallTensors::<T>::new(q, k, 0, &mut out.output, out.lse.as_mut())?;
            let sequence = |_: usize| tensors.sequence(axes.seq_q, axes.kv_len, call.causal_offset);
            run(s, &Problem { shape, sequences: 1, sequence: &sequence }, None);
            Ok(())
        })
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.mla.decode",
    operation = "attention.mla.decode",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("dim_ckv <= 512" => HEAD_DIM_TOO_LARGE, "dim_kpe <= 64" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "min(ceil_div(kv_len, 1024) - 1, 1) * ceil_div(kv_len, 1024) * tokens * heads * (dim_ckv + 2) * 4"
)]
impl<S: Attend> AttentionMlaDecodeKernel for MlaDecode<S> {
    fn run(
        &self,
        call: &AttentionMlaDecodeCall<'_>,
        mut out: AttentionMlaDecodeOut<'_>,
        with: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let shape = shape(axes.heads, axes.dim_ckv, axes.dim_kpe, call.sm_scale, false);
        with_float!(call.dtype_t, T => {
            let (q, k) = ([&call.q_nope, &call.q_pe], [&call.ckv, &call.kpe]);
            let tensors = CallTensors::<T>::new(q, k, 0, &mut out.output, out.lse.as_mut())?;
            let sequence = |_: usize| tensors.sequence(axes.tokens, axes.kv_len, 0);
            let problem = Problem { shape, sequences: 1, sequence: &sequence };
            let parts = (axes.kv_len as usize).div_ceil(LONG_CHUNK);
            if parts > 1 {
                let states = (axes.tokens * axes.heads) as usize * parts;
                let workspace = with.workspace((states * (shape.dim_v + 2) * size_of::<f32>()) as u64)?;
                run(s, &problem, Some(Split { chunk: LONG_CHUNK, workspace, first_part: &|_| 0 }));
            } else {
                run(s, &problem, None);
            }
            Ok(())
        })
    }
}

impl<S: Attend> MlaDecode<S> {
    /// The registry entry with AMX tiles. A task has the rows of several tokens, and few rows do not use tiles: the bits depend on the
    /// number of tokens.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_tiles(self) -> lz_core::KernelEntry {
        let mut entry = self.entry();
        std::sync::Arc::make_mut(&mut entry.spec).batch_invariant = false;
        entry
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.mla.decode.paged",
    operation = "attention.mla.decode.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("dim_ckv <= 512" => HEAD_DIM_TOO_LARGE, "dim_kpe <= 64" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "min(max(ceil_div(num_indices * page_size, 1024) - 1, 0), 1) * (ceil_div(num_indices * page_size, 1024) + batch) * heads * (dim_ckv + 2) * 4"
)]
impl<S: Attend> AttentionMlaDecodePagedKernel for MlaDecodePaged<S> {
    fn run(
        &self,
        call: &AttentionMlaDecodePagedCall<'_>,
        mut out: AttentionMlaDecodePagedOut<'_>,
        with: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let shape = shape(axes.heads, axes.dim_ckv, axes.dim_kpe, call.sm_scale, false);
        let pages = PageTable::new(
            &call.kv_indptr,
            &call.kv_indices,
            &call.kv_last_page_len,
            axes.page_size,
            axes.num_pages,
        )?;
        with_float!(call.dtype_t, T => {
            let (q, k) = ([&call.q_nope, &call.q_pe], [&call.ckv_cache, &call.kpe_cache]);
            let tensors = CallTensors::<T>::new(q, k, 1, &mut out.output, out.lse.as_mut())?;
            let sequence = |b: usize| {
                let tensors = &tensors;
                let (listed, keys) = pages.of(b);
                let (key, second) = (tensors.k[0].outer, tensors.k[1].outer);
                Sequence {
                    q: tensors.q[0].outer(b),
                    q_second: tensors.q[1].outer(b),
                    kv_layout: pages.kv_layout(listed, key, second, key),
                    output: tensors.output.outer(b),
                    lse: tensors.lse.outer(b),
                    ..tensors.sequence(1, keys as i64, 0)
                }
            };
            let problem = Problem { shape, sequences: axes.batch as usize, sequence: &sequence };
            match pages.parts(LONG_CHUNK) {
                Some(parts) => {
                    let bytes = parts * axes.heads as usize * (shape.dim_v + 2) * size_of::<f32>();
                    let workspace = with.workspace(bytes as u64)?;
                    let first_part = |b: usize| pages.first_part(b, LONG_CHUNK);
                    let split = Split { chunk: LONG_CHUNK, workspace, first_part: &first_part };
                    run(s, &problem, pages.requests_are_disjoint().then_some(split));
                }
                None => run(s, &problem, None),
            }
            Ok(())
        })
    }
}
