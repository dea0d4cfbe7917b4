//! `attention.{gqa,standard}.{decode,prefill}.paged`: keys and values are read through the page table of each
//! request.

use std::marker::PhantomData;

use lz_core::{KernelError, Run, TensorView};
use lz_ops::{
    AttentionGqaDecodePagedCall, AttentionGqaDecodePagedKernel, AttentionGqaDecodePagedLayout,
    AttentionGqaDecodePagedOut, AttentionGqaPrefillPagedCall, AttentionGqaPrefillPagedKernel,
    AttentionGqaPrefillPagedLayout, AttentionGqaPrefillPagedOut, AttentionStandardDecodePagedCall,
    AttentionStandardDecodePagedKernel, AttentionStandardDecodePagedLayout, AttentionStandardDecodePagedOut,
    AttentionStandardPrefillPagedCall, AttentionStandardPrefillPagedKernel,
    AttentionStandardPrefillPagedLayout, AttentionStandardPrefillPagedOut,
};

use super::problem::{KvLayout, Rows, Sequence, Shape, Slopes, index_slice, lse_mut, rows, rows_mut, span};
use super::run::{Attend, CHUNK, Problem, Split, run, run_ragged};
use crate::isa::require;
use crate::simd::with_float;

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaDecodePaged<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct StandardDecodePaged<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct GqaPrefillPaged<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type.
#[derive(Debug)]
pub(crate) struct StandardPrefillPaged<S>(pub PhantomData<S>);

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
        spans.fold((0, true), |(end, apart), span| (span.end, apart && span.start >= end)).1
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

/// Shared body: the calls have the same fields, but different types. `$queries` returns the query range of a
/// request.
macro_rules! paged {
    (
        $call:ident, $out:ident, $S:ty, kv_heads: $kv_heads:expr, heads_first: $heads_first:expr,
        causal: $causal:expr, window_right: $window_right:expr, queries: $queries:expr, |$s:ident, $problem:ident, $pages:ident| $go:expr
    ) => {{
        let (call, mut out) = ($call, $out);
        let $s = require::<$S>()?;
        let axes = &call.axes;
        let kv_heads = $kv_heads as usize;
        let (position, head) = if $heads_first { (2, 1) } else { (1, 2) };
        let shape = Shape {
            kv_heads,
            group: axes.heads as usize / kv_heads.max(1),
            dims: [axes.head_dim as usize, 0],
            dim_v: axes.head_dim as usize,
            shared: false,
            scale: call.sm_scale,
            soft_cap: call.soft_cap,
            causal: $causal,
            window_left: call.window_left,
            window_right: $window_right,
        };
        let $pages =
            PageTable::new(&call.kv_indptr, &call.kv_indices, &call.kv_last_page_len, axes.page_size, axes.num_pages)?;
        with_float!(call.dtype_t, T => {
            let tensors = super::prefill::CallTensors {
                q: rows::<T>(&call.q, 0, 1)?,
                k: rows::<T>(&call.k_cache, position, head)?,
                v: rows::<T>(&call.v_cache, position, head)?,
                output: rows_mut::<T>(&mut out.output, 0, 1)?,
                lse: lse_mut(out.lse.as_mut(), 0, 1)?,
            };
            let slopes = call.alibi_slopes;
            let queries = $queries;
            let sequence = |b: usize| {
                let tensors = &tensors;
                let (listed, keys) = $pages.of(b);
                let queries: std::ops::Range<i64> = queries(b);
                let count = queries.end - queries.start;
                Sequence {
                    queries: count as usize,
                    keys,
                    offset: keys as i64 - count,
                    q: tensors.q.from(queries.start),
                    q_second: Rows::NONE,
                    k: tensors.k,
                    k_second: Rows::NONE,
                    v: tensors.v,
                    kv_layout: $pages.kv_layout(listed, tensors.k.outer, 0, tensors.v.outer),
                    mask: None,
                    slopes: slopes.as_ref().map(|slopes| Slopes::new(slopes, b)),
                    output: tensors.output.from(queries.start),
                    lse: tensors.lse.from(queries.start),
                }
            };
            let $problem = Problem { shape, sequences: axes.batch as usize, sequence: &sequence };
            $go;
            Ok(())
        })
    }};
}

/// Decode uses split-KV for long requests.
macro_rules! paged_decode {
    ($call:ident, $out:ident, $run:ident, $S:ty, $kv_heads:expr, $heads_first:expr) => {
        paged!(
            $call, $out, $S, kv_heads: $kv_heads, heads_first: $heads_first, causal: false, window_right: -1,
            queries: |b: usize| b as i64..b as i64 + 1,
            |s, problem, pages| match pages.parts(CHUNK) {
                Some(parts) => {
                    let bytes = parts * $call.axes.heads as usize * (problem.shape.dim_v + 2) * size_of::<f32>();
                    let workspace = $run.workspace(bytes as u64)?;
                    let first_part = |b: usize| pages.first_part(b, CHUNK);
                    let split = Split { chunk: CHUNK, workspace, first_part: &first_part };
                    run(s, &problem, pages.requests_are_disjoint().then_some(split));
                }
                None => run(s, &problem, None),
            }
        )
    };
}

macro_rules! paged_prefill {
    ($call:ident, $out:ident, $S:ty, $kv_heads:expr, $heads_first:expr) => {{
        let indptr = index_slice(&$call.qo_indptr, &[])?;
        let total = $call.axes.total_q;
        paged!(
            $call, $out, $S, kv_heads: $kv_heads, heads_first: $heads_first, causal: $call.causal,
            window_right: $call.window_right, queries: |b: usize| span(indptr, b, total),
            |s, problem, _pages| run_ragged(s, &problem, indptr)
        )
    }};
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.decode.paged",
    operation = "attention.gqa.decode.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    workspace = "min(max(ceil_div(num_indices * page_size, 256) - 1, 0), 1) * (ceil_div(num_indices * page_size, 256) + batch) * heads * (head_dim + 2) * 4"
)]
impl<S: Attend> AttentionGqaDecodePagedKernel for GqaDecodePaged<S> {
    fn run(
        &self,
        call: &AttentionGqaDecodePagedCall<'_>,
        out: AttentionGqaDecodePagedOut<'_>,
        run_with: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        paged_decode!(
            call,
            out,
            run_with,
            S,
            call.axes.kv_heads,
            call.layout == AttentionGqaDecodePagedLayout::Hnd
        )
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.standard.decode.paged",
    operation = "attention.standard.decode.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    workspace = "min(max(ceil_div(num_indices * page_size, 256) - 1, 0), 1) * (ceil_div(num_indices * page_size, 256) + batch) * heads * (head_dim + 2) * 4"
)]
impl<S: Attend> AttentionStandardDecodePagedKernel for StandardDecodePaged<S> {
    fn run(
        &self,
        call: &AttentionStandardDecodePagedCall<'_>,
        out: AttentionStandardDecodePagedOut<'_>,
        run_with: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        paged_decode!(
            call,
            out,
            run_with,
            S,
            call.axes.heads,
            call.layout == AttentionStandardDecodePagedLayout::Hnd
        )
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.paged",
    operation = "attention.gqa.prefill.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionGqaPrefillPagedKernel for GqaPrefillPaged<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillPagedCall<'_>,
        out: AttentionGqaPrefillPagedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        paged_prefill!(call, out, S, call.axes.kv_heads, call.layout == AttentionGqaPrefillPagedLayout::Hnd)
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.standard.prefill.paged",
    operation = "attention.standard.prefill.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true
)]
impl<S: Attend> AttentionStandardPrefillPagedKernel for StandardPrefillPaged<S> {
    fn run(
        &self,
        call: &AttentionStandardPrefillPagedCall<'_>,
        out: AttentionStandardPrefillPagedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        paged_prefill!(call, out, S, call.axes.heads, call.layout == AttentionStandardPrefillPagedLayout::Hnd)
    }
}
