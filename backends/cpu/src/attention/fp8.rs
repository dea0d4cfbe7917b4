//! `attention.gqa.{decode,prefill}.paged.fp8`: the keys and values of a request and head are decoded to f32 by the task that attends to
//! them. Codes are exact in f32; their scales multiply the scores and the results.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use lz_core::element::{F8E4M3, F8E5M2};
use lz_core::{DType, KernelError, Run, TensorMut, TensorView};
use lz_ops::{
    AttentionGqaDecodePagedFp8Call, AttentionGqaDecodePagedFp8Kernel, AttentionGqaDecodePagedFp8Layout,
    AttentionGqaDecodePagedFp8Out, AttentionGqaPrefillPagedFp8Call, AttentionGqaPrefillPagedFp8Kernel,
    AttentionGqaPrefillPagedFp8Layout, AttentionGqaPrefillPagedFp8Out,
};

use super::exact;
use super::modified::{self, Modifier};
use super::paged::PageTable;
use super::problem::{
    KvLayout, Rows, Sequence, Shape, Sinks, Slopes, index_slice, lse_mut, rows, rows_mut, span,
};
use super::run::{Attend, attend_to, for_each, single_threaded_unless_sorted};
use super::task::{Ranges, Task, max_accurate_score};
use crate::isa::require;
use crate::memory::{self, FirstError};
use crate::simd::{Float, Simd, vectors, with_float};

/// Head dimension up to 256, any float type, caches of either format.
#[derive(Debug)]
pub(crate) struct GqaDecodePagedFp8<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type, caches of either format.
#[derive(Debug)]
pub(crate) struct GqaPrefillPagedFp8<S>(pub PhantomData<S>);

/// Memory that a thread keeps between tasks, in elements; a larger buffer is released.
const MAX_KEPT: usize = 1 << 22;

thread_local! {
    /// Decoded keys, values and queries, and results, reused between tasks.
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The inputs of a call of either operation.
struct PagedFp8<'a> {
    /// Queries, keys and values.
    tensors: [&'a TensorView<'a>; 3],
    slopes: Option<&'a TensorView<'a>>,
    sinks: Option<&'a TensorView<'a>>,
    /// Factors of keys and values.
    scales: [Option<&'a TensorView<'a>>; 2],
    /// The score expression, if the call has one.
    modifier: Option<Modifier<'a>>,
    pages: PageTable<'a>,
    /// Of one head; `scale` does not include the factor of the keys.
    shape: Shape,
    kv_heads: usize,
    batch: usize,
    /// Whether heads precede slots in a page.
    heads_first: bool,
}

/// The tensors of a call.
struct CallRows<T, C> {
    q: Rows<T>,
    k: Rows<C>,
    v: Rows<C>,
    output: Rows<T>,
    lse: Rows<f32>,
}

// SAFETY: addresses of tensors that the call borrows; each row of an output is written by one task.
unsafe impl<T, C> Sync for CallRows<T, C> {}

impl PagedFp8<'_> {
    /// `queries` returns the query range of a request.
    fn run<S: Attend, T: Float>(
        &self,
        s: S,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        queries: &(dyn Fn(usize) -> Range<i64> + Sync),
    ) -> Result<(), KernelError> {
        match self.tensors[1].dtype() {
            DType::F8E4M3 => self.run_as::<S, T, F8E4M3>(s, output, lse, queries),
            _ => self.run_as::<S, T, F8E5M2>(s, output, lse, queries),
        }
    }

    fn run_as<S: Attend, T: Float, C: Float>(
        &self,
        s: S,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        queries: &(dyn Fn(usize) -> Range<i64> + Sync),
    ) -> Result<(), KernelError> {
        let (slot, head) = if self.heads_first { (2, 1) } else { (1, 2) };
        let [q, k, v] = self.tensors;
        let tensors = CallRows::<T, C> {
            q: rows(q, 0, 1)?,
            k: rows(k, slot, head)?,
            v: rows(v, slot, head)?,
            output: rows_mut(output, 0, 1)?,
            lse: lse_mut(lse, 0, 1)?,
        };
        let dim = self.shape.dims[0];
        let work: usize = (0..self.batch)
            .map(|b| {
                let (count, keys) = (queries(b), self.pages.of(b).1);
                keys * ((count.end - count.start).max(0) as usize * self.shape.group + 1)
            })
            .sum();
        let error = FirstError::default();
        for_each(work.saturating_mul(self.kv_heads * 2 * dim), self.batch * self.kv_heads, &|number| {
            let tensors = &tensors;
            let (b, head) = (number / self.kv_heads, number % self.kv_heads);
            error.keep(DECODED.with(|memory| match memory.try_borrow_mut() {
                Ok(mut memory) => {
                    let result = self.attend::<S, T, C>(s, tensors, queries(b), (b, head), &mut memory);
                    if memory.capacity() > MAX_KEPT {
                        *memory = Vec::new();
                    }
                    result
                }
                // A task that runs inside another one of this thread has memory of its own.
                Err(_) => self.attend::<S, T, C>(s, tensors, queries(b), (b, head), &mut Vec::new()),
            }));
        });
        error.into_result()
    }

    /// Attention of the queries of one request and KV head.
    fn attend<S: Attend, T: Float, C: Float>(
        &self,
        s: S,
        tensors: &CallRows<T, C>,
        queries: Range<i64>,
        (b, head): (usize, usize),
        memory: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        let (dim, group) = (self.shape.dims[0], self.shape.group);
        let count = (queries.end - queries.start).max(0) as usize;
        if count == 0 || group == 0 {
            return Ok(());
        }
        let (listed, keys) = self.pages.of(b);
        let query_floats = count * group * dim;
        let all = 2 * (keys * dim + query_floats);
        // The previous content is not copied if the memory grows.
        memory.clear();
        memory::grow(memory, all)?;
        let (decoded, rest) = memory.split_at_mut(2 * keys * dim);
        let (decoded_k, decoded_v) = decoded.split_at_mut(keys * dim);
        let (q, result) = rest.split_at_mut(query_floats);
        let layout = self.pages.kv_layout(listed, tensors.k.outer, 0, tensors.v.outer);
        s.vectorize(|| {
            for (j, (k, v)) in
                decoded_k.chunks_exact_mut(dim).zip(decoded_v.chunks_exact_mut(dim)).enumerate()
            {
                let [from_k, from_v] = address(&layout, tensors, j, head);
                // SAFETY: keys of the request are inside the caches, and a row has `dim` elements.
                unsafe {
                    convert(s, from_k, k.as_mut_ptr(), dim);
                    convert(s, from_v, v.as_mut_ptr(), dim);
                }
            }
            for (row, q) in q.chunks_exact_mut(dim).enumerate() {
                let query = queries.start as usize + row / group;
                // SAFETY: the query and its head are inside the queries.
                unsafe { convert(s, tensors.q.at(query, head * group + row % group), q.as_mut_ptr(), dim) };
            }
        });
        let [k_scale, v_scale] = self.scales.map(|scale| scale_of(scale, head));
        let shape = Shape {
            scale: self.shape.scale * k_scale,
            exact_scale: f64::from(self.shape.scale) * f64::from(k_scale),
            ..self.shape
        };
        let dense = |data: &[f32], heads: usize| Rows {
            data: data.as_ptr(),
            outer: 0,
            position: (heads * dim) as isize,
            head: dim as isize,
        };
        let lse = tensors.lse.from(queries.start);
        let sequence = Sequence {
            queries: count,
            keys,
            offset: keys as i64 - count as i64,
            q: dense(&q[..], group),
            q_second: Rows::NONE,
            k: dense(&decoded_k[..], 1),
            k_second: Rows::NONE,
            v: dense(&decoded_v[..], 1),
            kv_layout: KvLayout::Dense,
            mask: None,
            slopes: self.slopes.map(|slopes| Slopes::new(slopes, b).starting_at(head * group)),
            sinks: self.sinks.map(|sinks| Sinks::new(sinks).starting_at(head * group)),
            output: Rows { data: result.as_mut_ptr().cast_const(), ..dense(&q[..], group) },
            lse: Rows { data: lse.data.wrapping_offset((head * group) as isize * lse.head), ..lse },
        };
        let last = sequence.offset + count as i64 - 1;
        let visible = shape.visible(sequence.offset, keys).start..shape.visible(last, keys).end;
        let (rows, ranges): (usize, Ranges<'_>) = (count * group, &|take| take(visible.clone()));
        let task_of =
            |rows| Task { shape: &shape, sequence: &sequence, head: 0, heads: 1, rows, next_head: None };
        if let Some(modifier) = &self.modifier {
            for start in (0..rows).step_by(modified::ROWS) {
                let task = task_of(start..rows.min(start + modified::ROWS));
                modified::attend(s, &task, b, head * group, modifier);
            }
        // A soft cap hides how large a score was before it, and thus how inaccurate it is in f32.
        } else if shape.soft_cap > 0.0
            && largest_score(q, decoded_k, dim) * shape.scale > max_accurate_score::<T>()
        {
            let task = task_of(0..rows);
            (0..rows).for_each(|row| exact::write_row(&task, row, ranges));
        } else {
            attend_to(s, &shape, &sequence, 0, 0..rows, ranges);
        }
        s.vectorize(|| {
            for (row, from) in result.chunks_exact(dim).enumerate() {
                let query = queries.start as usize + row / group;
                let to = tensors.output.at(query, head * group + row % group).cast_mut();
                // SAFETY: the row is inside the output, and only this task writes it.
                unsafe {
                    vectors!(S, dim, |span| {
                        let value = <f32 as Float>::load(s, from.as_ptr(), span);
                        T::store(s, to, span, s.mul(value, s.splat(v_scale)));
                    });
                }
            }
        });
        Ok(())
    }
}

/// Addresses of a key and its value.
#[inline(always)]
fn address<T, C>(layout: &KvLayout<'_>, tensors: &CallRows<T, C>, j: usize, head: usize) -> [*const C; 2] {
    match *layout {
        KvLayout::Dense => [tensors.k.at(j, head), tensors.v.at(j, head)],
        KvLayout::Paged { pages, size, count, key, value, .. } => {
            let page = pages.get(j / size).copied().unwrap_or(0).max(0) as usize;
            let (page, slot) = (page.min(count.saturating_sub(1)) as isize, j % size);
            [
                tensors.k.at(slot, head).wrapping_offset(page * key),
                tensors.v.at(slot, head).wrapping_offset(page * value),
            ]
        }
    }
}

/// An upper bound of all products of queries and keys; NaN counts as infinite.
fn largest_score(q: &[f32], keys: &[f32], dim: usize) -> f32 {
    let largest = |values: &[f32]| {
        values.iter().fold(0.0f32, |most, value| if value.abs() <= most { most } else { value.abs() })
    };
    let sums = q.chunks_exact(dim).map(|row| row.iter().map(|value| value.abs()).sum::<f32>());
    let bound = sums.fold(0.0f32, |most, sum| if sum <= most { most } else { sum }) * largest(keys);
    if bound.is_nan() { f32::INFINITY } else { bound }
}

/// Converts a row to f32.
///
/// # Safety
/// Both rows have `count` elements.
#[inline(always)]
unsafe fn convert<S: Simd, E: Float>(s: S, from: *const E, to: *mut f32, count: usize) {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        vectors!(S, count, |span| {
            <f32 as Float>::store(s, to, span, E::load(s, from, span));
        });
    }
}

/// The factor of a head: one for all heads, or one per head.
fn scale_of(scales: Option<&TensorView<'_>>, head: usize) -> f32 {
    let Some(scales) = scales else { return 1.0 };
    let scale = match scales.shape() {
        [] => scales.at(&[]),
        [1] => scales.at(&[0]),
        _ => scales.at(&[head as i64]),
    };
    scale as f32
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.decode.paged.fp8",
    operation = "attention.gqa.decode.paged.fp8",
    backend = "cpu",
    priority = 60,
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Attend> AttentionGqaDecodePagedFp8Kernel for GqaDecodePagedFp8<S> {
    fn run(
        &self,
        call: &AttentionGqaDecodePagedFp8Call<'_>,
        mut out: AttentionGqaDecodePagedFp8Out<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let (indptr, indices, last) = (&call.kv_indptr, &call.kv_indices, &call.kv_last_page_len);
        let group = axes.heads / axes.kv_heads.max(1);
        let paged = PagedFp8 {
            tensors: [&call.q, &call.k_cache, &call.v_cache],
            slopes: call.alibi_slopes.as_ref(),
            sinks: call.sinks.as_ref(),
            scales: [call.k_scale.as_ref(), call.v_scale.as_ref()],
            modifier: Modifier::if_given(call.score_mod.as_ref(), call.score_params.as_ref())?,
            pages: PageTable::new(indptr, indices, last, axes.page_size, axes.num_pages)?,
            shape: Shape {
                soft_cap: call.soft_cap,
                window_left: call.window_left,
                ..Shape::grouped(group, 1, axes.head_dim, axes.head_dim, call.sm_scale)
            },
            kv_heads: axes.kv_heads as usize,
            batch: axes.batch as usize,
            heads_first: call.layout == AttentionGqaDecodePagedFp8Layout::Hnd,
        };
        let queries = |b: usize| b as i64..b as i64 + 1;
        with_float!(call.dtype_t, T => paged.run::<S, T>(s, &mut out.output, out.lse.as_mut(), &queries))
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.paged.fp8",
    operation = "attention.gqa.prefill.paged.fp8",
    backend = "cpu",
    priority = 60,
    limits("head_dim <= 256" => HEAD_DIM_TOO_LARGE),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Attend> AttentionGqaPrefillPagedFp8Kernel for GqaPrefillPagedFp8<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillPagedFp8Call<'_>,
        mut out: AttentionGqaPrefillPagedFp8Out<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let (indptr, indices, last) = (&call.kv_indptr, &call.kv_indices, &call.kv_last_page_len);
        let group = axes.heads / axes.kv_heads.max(1);
        let paged = PagedFp8 {
            tensors: [&call.q, &call.k_cache, &call.v_cache],
            slopes: call.alibi_slopes.as_ref(),
            sinks: call.sinks.as_ref(),
            scales: [call.k_scale.as_ref(), call.v_scale.as_ref()],
            modifier: Modifier::if_given(call.score_mod.as_ref(), call.score_params.as_ref())?,
            pages: PageTable::new(indptr, indices, last, axes.page_size, axes.num_pages)?,
            shape: Shape {
                soft_cap: call.soft_cap,
                causal: call.causal,
                window_left: call.window_left,
                window_right: call.window_right,
                ..Shape::grouped(group, 1, axes.head_dim, axes.head_dim, call.sm_scale)
            },
            kv_heads: axes.kv_heads as usize,
            batch: axes.batch as usize,
            heads_first: call.layout == AttentionGqaPrefillPagedFp8Layout::Hnd,
        };
        let (qo_indptr, total) = (index_slice(&call.qo_indptr, &[])?, axes.total_q);
        let queries = |b: usize| span(qo_indptr, b, total);
        with_float!(call.dtype_t, T => {
            let attend = || paged.run::<S, T>(s, &mut out.output, out.lse.as_mut(), &queries);
            single_threaded_unless_sorted(qo_indptr, attend)
        })
    }
}
