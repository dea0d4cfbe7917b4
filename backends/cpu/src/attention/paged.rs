//! `attention.gqa.{decode,prefill}.paged` and their specializations `attention.standard.{decode,prefill}.paged`:
//! keys and values are read through the page table of each request.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{KernelError, Run, TensorMut, TensorView};
use lz_ops::{
    AttentionGqaDecodePagedCall, AttentionGqaDecodePagedKernel, AttentionGqaDecodePagedLayout,
    AttentionGqaDecodePagedOut, AttentionGqaPrefillPagedCall, AttentionGqaPrefillPagedKernel,
    AttentionGqaPrefillPagedLayout, AttentionGqaPrefillPagedOut, AttentionStandardDecodePagedKernel,
    AttentionStandardPrefillPagedKernel,
};

use super::prefill::CallTensors;
use super::problem::{KvLayout, Sequence, Shape, Sinks, Slopes, index_slice, span};
use super::run::{Attend, CHUNK, Problem, Split, run, run_ragged};
use crate::isa::require;
use crate::simd::{Float, with_float};

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaDecodePaged<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaPrefillPaged<S>(pub PhantomData<S>);

/// A CSR page table. Invalid contents never cause reads outside the KV cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageTable<'a> {
    indptr: &'a [i32],
    indices: &'a [i32],
    last_page_len: &'a [i32],
    size: usize,
    count: usize,
}

impl<'a> PageTable<'a> {
    pub(super) fn new(
        indptr: &TensorView<'a>,
        indices: &TensorView<'a>,
        last_page_len: &TensorView<'a>,
        size: i64,
        count: i64,
    ) -> Result<PageTable<'a>, KernelError> {
        Ok(PageTable {
            indptr: index_slice(indptr, &[])?,
            indices: index_slice(indices, &[])?,
            last_page_len: index_slice(last_page_len, &[])?,
            size: size.max(1) as usize,
            count: count.max(0) as usize,
        })
    }

    /// The pages of a request, and the number of keys on them.
    pub(super) fn of(&self, request: usize) -> (&'a [i32], usize) {
        let listed = span(self.indptr, request, self.indices.len() as i64);
        let pages = &self.indices[listed.start as usize..listed.end as usize];
        if pages.is_empty() || self.count == 0 {
            return (&[], 0);
        }
        let last = self.last_page_len.get(request).map_or(0, |&last| last.max(0) as usize);
        (pages, (pages.len() - 1) * self.size + last.min(self.size))
    }

    /// The KV layout of a request; the arguments are page strides.
    pub(super) fn kv_layout(
        &self,
        pages: &'a [i32],
        key: isize,
        second: isize,
        value: isize,
    ) -> KvLayout<'a> {
        KvLayout::Paged { pages, size: self.size, count: self.count, key, second, value }
    }

    /// Whether requests are disjoint and in order; only then does the start of a request identify its
    /// split-KV parts.
    pub(super) fn requests_are_disjoint(&self) -> bool {
        let total = self.indices.len() as i64;
        let spans = (0..self.last_page_len.len()).map(|request| span(self.indptr, request, total));
        spans.fold((0, true), |(end, disjoint), span| (span.end, disjoint && span.start >= end)).1
    }

    /// Number of parts per row of all requests before this one; parts never overlap if the requests are
    /// disjoint.
    pub(super) fn first_part(&self, request: usize, chunk: usize) -> usize {
        let listed = span(self.indptr, request, self.indices.len() as i64);
        listed.start as usize * self.size / chunk + request
    }

    /// Number of parts per row of all requests; `None` if a call of this size is not split.
    pub(super) fn parts(&self, chunk: usize) -> Option<usize> {
        let parts = (self.indices.len() * self.size).div_ceil(chunk);
        (parts > 1).then_some(parts + self.last_page_len.len())
    }
}

/// The inputs of a call of either operation.
pub(super) struct Paged<'a> {
    /// Queries, keys and values.
    tensors: [&'a TensorView<'a>; 3],
    slopes: Option<&'a TensorView<'a>>,
    sinks: Option<&'a TensorView<'a>>,
    pages: PageTable<'a>,
    shape: Shape,
    batch: i64,
    /// Whether heads precede slots in a page.
    heads_first: bool,
}

impl<'a> Paged<'a> {
    /// Of a decode step.
    pub(super) fn decode(call: &'a AttentionGqaDecodePagedCall<'_>) -> Result<Paged<'a>, KernelError> {
        let axes = &call.axes;
        let (indptr, indices, last) = (&call.kv_indptr, &call.kv_indices, &call.kv_last_page_len);
        Ok(Paged {
            tensors: [&call.q, &call.k_cache, &call.v_cache],
            slopes: call.alibi_slopes.as_ref(),
            sinks: call.sinks.as_ref(),
            pages: PageTable::new(indptr, indices, last, axes.page_size, axes.num_pages)?,
            shape: Shape {
                soft_cap: call.soft_cap,
                window_left: call.window_left,
                ..Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim, call.sm_scale)
            },
            batch: axes.batch,
            heads_first: call.layout == AttentionGqaDecodePagedLayout::Hnd,
        })
    }

    /// Of a prefill.
    pub(super) fn prefill(call: &'a AttentionGqaPrefillPagedCall<'_>) -> Result<Paged<'a>, KernelError> {
        let axes = &call.axes;
        let (indptr, indices, last) = (&call.kv_indptr, &call.kv_indices, &call.kv_last_page_len);
        Ok(Paged {
            tensors: [&call.q, &call.k_cache, &call.v_cache],
            slopes: call.alibi_slopes.as_ref(),
            sinks: call.sinks.as_ref(),
            pages: PageTable::new(indptr, indices, last, axes.page_size, axes.num_pages)?,
            shape: Shape {
                soft_cap: call.soft_cap,
                causal: call.causal,
                window_left: call.window_left,
                window_right: call.window_right,
                ..Shape::grouped(axes.heads, axes.kv_heads, axes.head_dim, axes.head_dim, call.sm_scale)
            },
            batch: axes.batch,
            heads_first: call.layout == AttentionGqaPrefillPagedLayout::Hnd,
        })
    }

    /// Calls `attend` with the problem; `queries` returns the query range of a request.
    pub(super) fn run<T: Float>(
        &self,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        queries: &(dyn Fn(usize) -> Range<i64> + Sync),
        attend: impl FnOnce(&Problem<'_, '_, T>) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let key_dims = if self.heads_first { (2, 1) } else { (1, 2) };
        let tensors = CallTensors::<T>::new(self.tensors, output, lse, [(0, 1), key_dims])?;
        let sequence = |b: usize| {
            let tensors = &tensors;
            let (listed, keys) = self.pages.of(b);
            let queries = queries(b);
            let count = queries.end - queries.start;
            Sequence {
                q: tensors.q.from(queries.start),
                k: tensors.k,
                v: tensors.v,
                kv_layout: self.pages.kv_layout(listed, tensors.k.outer, 0, tensors.v.outer),
                slopes: self.slopes.map(|slopes| Slopes::new(slopes, b)),
                sinks: self.sinks.map(Sinks::new),
                output: tensors.output.from(queries.start),
                lse: tensors.lse.from(queries.start),
                ..tensors.sequence(0, count, keys as i64, keys as i64 - count)
            }
        };
        attend(&Problem { shape: self.shape, sequences: self.batch as usize, sequence: &sequence })
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.decode.paged",
    operation = "attention.gqa.decode.paged",
    specialized = "attention.standard.decode.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "not given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "min(max(ceil_div(num_indices * page_size, 256) - 1, 0), 1) * (ceil_div(num_indices * page_size, 256) + batch) * heads * (head_dim + 2) * 4"
)]
impl<S: Attend> AttentionGqaDecodePagedKernel for GqaDecodePaged<S> {
    fn run(
        &self,
        call: &AttentionGqaDecodePagedCall<'_>,
        mut out: AttentionGqaDecodePagedOut<'_>,
        resources: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let paged = Paged::decode(call)?;
        let pages = paged.pages;
        let queries = |b: usize| b as i64..b as i64 + 1;
        with_float!(call.dtype_t, T => paged.run::<T>(&mut out.output, out.lse.as_mut(), &queries, |problem| {
            // Split-KV for long requests.
            let Some(parts) = pages.parts(CHUNK) else {
                run(s, problem, None);
                return Ok(());
            };
            let bytes = parts * call.axes.heads as usize * (problem.shape.dim_v + 2) * size_of::<f32>();
            let workspace = resources.workspace(bytes as u64)?;
            let first_part = |b: usize| pages.first_part(b, CHUNK);
            let split = Split { chunk: CHUNK, workspace, first_part: &first_part };
            run(s, problem, pages.requests_are_disjoint().then_some(split));
            Ok(())
        }))
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.paged",
    operation = "attention.gqa.prefill.paged",
    specialized = "attention.standard.prefill.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE, "not given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Attend> AttentionGqaPrefillPagedKernel for GqaPrefillPaged<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillPagedCall<'_>,
        mut out: AttentionGqaPrefillPagedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let paged = Paged::prefill(call)?;
        let (qo_indptr, total) = (index_slice(&call.qo_indptr, &[])?, call.axes.total_q);
        let queries = |b: usize| span(qo_indptr, b, total);
        with_float!(call.dtype_t, T => paged.run::<T>(&mut out.output, out.lse.as_mut(), &queries, |problem| {
            run_ragged(s, problem, qo_indptr);
            Ok(())
        }))
    }
}
