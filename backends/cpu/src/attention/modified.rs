//! Attention with a score expression (`score_mod`): contiguous, ragged and paged. FP8 caches use [`attend`] after decoding.
//!
//! Scores are computed and modified in f64: an expression may amplify the rounding of a score without bound, so f32 scores would
//! not be accurate for every expression. A task is a few rows of one KV head; keys and values are widened once per task and tile.

use std::marker::PhantomData;
use std::sync::Arc;

use lz_core::score_mod::{MAX_DEPTH, ScoreMod, Values, slot};
use lz_core::{KernelError, Run, TensorView};
use lz_ops::{
    AttentionGqaDecodeCall, AttentionGqaDecodeKernel, AttentionGqaDecodeOut, AttentionGqaDecodePagedCall,
    AttentionGqaDecodePagedKernel, AttentionGqaDecodePagedOut, AttentionGqaPrefillCall,
    AttentionGqaPrefillKernel, AttentionGqaPrefillOut, AttentionGqaPrefillPagedCall,
    AttentionGqaPrefillPagedKernel, AttentionGqaPrefillPagedOut, AttentionGqaPrefillRaggedCall,
    AttentionGqaPrefillRaggedKernel, AttentionGqaPrefillRaggedOut, AttentionStandardDecodeKernel,
    AttentionStandardDecodePagedKernel, AttentionStandardPrefillKernel, AttentionStandardPrefillPagedKernel,
    AttentionStandardPrefillRaggedKernel,
};

use super::decode::Decode;
use super::exact::write_lse;
use super::paged::Paged;
use super::problem::{index_slice, span};
use super::run::{Problem, SyncRef, for_each, single_threaded_unless_sorted};
use super::task::Task;
use super::{prefill, ragged};
use crate::isa::require;
use crate::simd::{Float, Simd, Span, Work, vectors, with_float};

/// Rows of a task: they share the widened keys and values.
pub(super) const ROWS: usize = 16;
/// Keys of a tile.
const KEYS: usize = 32;
/// Maximum head dimension.
const MAX_DIM: usize = 256;
/// Elements of a block of a dot product, which have a sum of their own.
const BLOCK: usize = 8;

/// Head dimension up to 256, any float type, with a score expression.
#[derive(Debug)]
pub(crate) struct ModifiedPrefill<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type, with a score expression.
#[derive(Debug)]
pub(crate) struct ModifiedDecode<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type, with a score expression.
#[derive(Debug)]
pub(crate) struct ModifiedPrefillRagged<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type, with a score expression.
#[derive(Debug)]
pub(crate) struct ModifiedPrefillPaged<S>(pub PhantomData<S>);

/// Head dimension up to 256, any float type, with a score expression.
#[derive(Debug)]
pub(crate) struct ModifiedDecodePaged<S>(pub PhantomData<S>);

/// The score expression of a call.
pub(super) struct Modifier<'a> {
    expression: Arc<ScoreMod>,
    parameters: Option<&'a TensorView<'a>>,
}

impl<'a> Modifier<'a> {
    /// Of a call that has an expression.
    fn new(
        text: Option<&TensorView<'_>>,
        parameters: Option<&'a TensorView<'a>>,
    ) -> Result<Modifier<'a>, KernelError> {
        Modifier::if_given(text, parameters)?.ok_or_else(|| {
            KernelError::failed("the call has no score expression".to_owned()).before_writing()
        })
    }

    /// Of a call that may have an expression.
    pub(super) fn if_given(
        text: Option<&TensorView<'_>>,
        parameters: Option<&'a TensorView<'a>>,
    ) -> Result<Option<Modifier<'a>>, KernelError> {
        let Some(text) = text else { return Ok(None) };
        let count = parameters.map_or(0, |parameters| parameters.shape().last().copied().unwrap_or(0));
        let expression = ScoreMod::of(text, count).map_err(KernelError::because)?;
        Ok(Some(Modifier { expression, parameters }))
    }

    /// The values that are the same for all keys of a row.
    fn values(&self, batch: usize, head: usize, query: usize, position: i64) -> Values {
        let mut values = [f64::NAN; slot::COUNT];
        values[slot::Q_INDEX] = query as f64;
        values[slot::Q_POSITION] = position as f64;
        values[slot::HEAD] = head as f64;
        values[slot::BATCH] = batch as f64;
        values[slot::INFINITY] = f64::INFINITY;
        if let Some(parameters) = self.parameters {
            let count = parameters.shape().last().copied().unwrap_or(0);
            for (number, value) in (0..count).zip(&mut values[slot::PARAMETERS..]) {
                *value = parameters.at(&[batch as i64, head as i64, number]);
            }
        }
        values
    }
}

/// Computes all rows of all sequences.
fn attend_all<S: Simd, T: Float>(s: S, problem: &Problem<'_, '_, T>, modifier: &Modifier<'_>) {
    let shape = &problem.shape;
    let (mut blocks, mut work) = (0, 0usize);
    for index in 0..problem.sequences {
        let sequence = (problem.sequence)(index);
        let rows = sequence.queries * shape.group;
        blocks = blocks.max(rows.div_ceil(ROWS));
        work = work.saturating_add(rows.saturating_mul(sequence.keys));
    }
    let work = work.saturating_mul(shape.kv_heads).saturating_mul(shape.dim() + shape.dim_v);
    let shared = SyncRef(&(problem, modifier));
    let task = |number: usize| {
        let &(problem, modifier) = shared.get();
        let (rest, block) = (number / blocks, number % blocks);
        let (batch, head) = (rest / shape.kv_heads, rest % shape.kv_heads);
        let sequence = (problem.sequence)(batch);
        let all = sequence.queries * shape.group;
        let rows = (block * ROWS).min(all)..((block + 1) * ROWS).min(all);
        if rows.is_empty() {
            return;
        }
        let task = Task { shape, sequence: &sequence, head, heads: 1, rows, next_head: None };
        attend(s, &task, batch, 0, modifier);
    };
    for_each(work, problem.sequences * shape.kv_heads * blocks, &task);
}

/// Memory of a task.
#[repr(align(64))]
struct Memory {
    q: [f64; ROWS * MAX_DIM],
    /// Keys, then values, of a tile.
    kv: [f64; KEYS * MAX_DIM],
    /// Output before normalization.
    sums: [f64; ROWS * MAX_DIM],
    scores: [[f64; KEYS]; ROWS],
    stack: [[f64; KEYS]; MAX_DEPTH],
    line: [f32; MAX_DIM + 16],
}

/// The softmax state of a row.
#[derive(Clone, Copy)]
struct RowState {
    running_max: f64,
    sum_exp: f64,
    is_nan: bool,
    values: Values,
}

/// Computes at most `ROWS` rows. For the expression, `batch` is the index of the sequence, and head 0 of the sequence has the index
/// `first_head`.
#[inline(never)]
pub(super) fn attend<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    batch: usize,
    first_head: usize,
    modifier: &Modifier<'_>,
) {
    let mut memory = Memory {
        q: [0.0; ROWS * MAX_DIM],
        kv: [0.0; KEYS * MAX_DIM],
        sums: [0.0; ROWS * MAX_DIM],
        scores: [[0.0; KEYS]; ROWS],
        stack: [[0.0; KEYS]; MAX_DEPTH],
        line: [0.0; MAX_DIM + 16],
    };
    let rows = task.rows.len();
    let mut states: [RowState; ROWS] = std::array::from_fn(|row| {
        let (query, head) = task.row(row.min(rows - 1));
        let values = modifier.values(batch, first_head + head, query, task.query_position(row.min(rows - 1)));
        RowState { running_max: f64::NEG_INFINITY, sum_exp: 0.0, is_nan: false, values }
    });
    s.perform(Attend { s, task, modifier, memory: &mut memory, states: &mut states });
    for (row, (state, sums)) in states.iter().zip(memory.sums.chunks_exact(MAX_DIM)).take(rows).enumerate() {
        write_row(task, row, state, &sums[..task.shape.dim_v]);
    }
}

/// All tiles of a task.
struct Attend<'w, 't, 's, 'a, S, T> {
    s: S,
    task: &'w Task<'t, 's, T>,
    modifier: &'w Modifier<'a>,
    memory: &'w mut Memory,
    states: &'w mut [RowState; ROWS],
}

impl<S: Simd, T: Float> Work for Attend<'_, '_, '_, '_, S, T> {
    #[inline(always)]
    fn perform(self) {
        let Attend { s, task, modifier, memory, states } = self;
        let (shape, sequence, rows) = (task.shape, task.sequence, task.rows.len());
        let (dim, dim_v) = (shape.dims[0], shape.dim_v);
        let (width, width_v) = (dim.next_multiple_of(BLOCK), dim_v.next_multiple_of(BLOCK));
        let Memory { q, kv, sums, scores, stack, line } = memory;
        for (row, q) in q.chunks_exact_mut(width.max(BLOCK)).take(rows).enumerate() {
            let (query, head) = task.row(row);
            widen(s, sequence.q.at(query, head), dim, line, q);
        }
        let whole = task.visible(0).start..task.visible(rows - 1).end;
        for start in whole.clone().step_by(KEYS) {
            let count = KEYS.min(whole.end - start);
            for (key, k) in kv.chunks_exact_mut(width.max(BLOCK)).take(count).enumerate() {
                widen(s, sequence.key(start + key, task.head)[0], dim, line, k);
            }
            products(q, kv, width, rows, count, scores);
            for (row, (scores, state)) in scores.iter_mut().zip(&mut *states).take(rows).enumerate() {
                modify(task, row, start, count, modifier, state, scores, stack);
            }
            for (key, v) in kv.chunks_exact_mut(width_v.max(BLOCK)).take(count).enumerate() {
                widen(s, sequence.key(start + key, task.head)[2], dim_v, line, v);
            }
            for ((scores, state), sums) in
                scores.iter_mut().zip(&mut *states).zip(sums.chunks_exact_mut(MAX_DIM)).take(rows)
            {
                accumulate(state, &mut scores[..count], kv, width_v, &mut sums[..width_v]);
            }
        }
    }
}

/// Widens one row of `dim` features; the rest of `to` becomes 0.
#[inline(always)]
fn widen<S: Simd, T: Float>(
    s: S,
    from: *const T,
    dim: usize,
    line: &mut [f32; MAX_DIM + 16],
    to: &mut [f64],
) {
    // SAFETY: the row has `dim` features and is inside its tensor; full vectors fit into the line.
    unsafe {
        vectors!(S, dim, |span| {
            s.store(line.as_mut_ptr().add(span.at()), T::load(s, from, span));
        });
    }
    let (features, rest) = to.split_at_mut(dim.min(to.len()));
    features.iter_mut().zip(line.iter()).for_each(|(to, &from)| *to = f64::from(from));
    rest.fill(0.0);
}

/// Dot products of all rows with all keys of a tile, four rows at a time.
#[inline(always)]
fn products(q: &[f64], k: &[f64], width: usize, rows: usize, keys: usize, scores: &mut [[f64; KEYS]; ROWS]) {
    let width = width.max(BLOCK);
    for first in (0..rows).step_by(4) {
        for (key, k) in k.chunks_exact(width).take(keys).enumerate() {
            let mut sums = [[0.0f64; BLOCK]; 4];
            for (block, k) in k.chunks_exact(BLOCK).enumerate() {
                for (row, sums) in sums.iter_mut().enumerate() {
                    // Rows beyond the last one are 0.
                    let at = (first + row) * width + block * BLOCK;
                    let Some(q) = q.get(at..at + BLOCK) else { continue };
                    for ((sum, q), k) in sums.iter_mut().zip(q).zip(k) {
                        *sum += q * k;
                    }
                }
            }
            for (scores, sums) in scores[first..].iter_mut().zip(&sums) {
                scores[key] = sums.iter().sum();
            }
        }
    }
}

/// Turns the dot products of a row into its final scores; -∞ for keys that are masked out.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined into one caller")]
fn modify<T: Float>(
    task: &Task<'_, '_, T>,
    row: usize,
    start: usize,
    count: usize,
    modifier: &Modifier<'_>,
    state: &mut RowState,
    scores: &mut [f64; KEYS],
    stack: &mut [[f64; KEYS]; MAX_DEPTH],
) {
    let (shape, sequence) = (task.shape, task.sequence);
    let (query, head) = task.row(row);
    let (position, visible) = (task.query_position(row), task.visible(row));
    scores.iter_mut().for_each(|score| *score *= shape.exact_scale);
    if shape.soft_cap > 0.0 {
        let soft_cap = f64::from(shape.soft_cap);
        scores.iter_mut().for_each(|score| *score = soft_cap * (*score / soft_cap).tanh());
    }
    if let Some(slopes) = sequence.slopes {
        // SAFETY: the call has a slope for each head.
        let slope = f64::from(unsafe { slopes.at(head) });
        for (key, score) in (start..).zip(scores.iter_mut()) {
            *score += slope * (key as i64 - position) as f64;
        }
    }
    modifier.expression.evaluate_lanes(&mut state.values, start, scores, stack);
    if let Some(mask) = sequence.mask {
        for (key, score) in (start..).zip(scores.iter_mut().take(count)) {
            // SAFETY: head, query and key are inside the mask, which the call borrows.
            let added = unsafe { mask.at(head, query, key) };
            let is_hidden = added == f32::NEG_INFINITY && mask.is_boolean();
            *score = if is_hidden { f64::NEG_INFINITY } else { *score + f64::from(added) };
        }
    }
    for (key, score) in (start..).zip(scores.iter_mut().take(count)) {
        if !visible.contains(&key) {
            *score = f64::NEG_INFINITY;
        }
    }
}

/// Online softmax step: adds the weighted values of a tile to the sums of a row.
#[inline(always)]
fn accumulate(state: &mut RowState, scores: &mut [f64], v: &[f64], width: usize, sums: &mut [f64]) {
    let before = state.running_max;
    for &score in scores.iter() {
        state.is_nan |= score.is_nan() || score == f64::INFINITY;
        state.running_max = state.running_max.max(score);
    }
    if state.is_nan || state.running_max == f64::NEG_INFINITY {
        return;
    }
    // In exact arithmetic no factor is zero: the smallest one still propagates an infinity or NaN of a value.
    let factor = |distance: f64| distance.exp().max(f64::MIN_POSITIVE);
    if before != state.running_max && before != f64::NEG_INFINITY {
        let correction = factor(before - state.running_max);
        state.sum_exp *= correction;
        sums.iter_mut().for_each(|sum| *sum *= correction);
    }
    for (key, &score) in scores.iter().enumerate() {
        if score == f64::NEG_INFINITY {
            continue;
        }
        let weight = factor(score - state.running_max);
        state.sum_exp += weight;
        let values = &v[key * width.max(BLOCK)..];
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
    }
}

/// Adds the sink, normalizes a row and writes it.
fn write_row<T: Float>(task: &Task<'_, '_, T>, row: usize, state: &RowState, sums: &[f64]) {
    let (query, head) = task.row(row);
    // SAFETY: the head is one of the call, which has a sink for each.
    let sink = task.sequence.sinks.and_then(|sinks| unsafe { sinks.at(head) }).map(f64::from);
    let is_nan = state.is_nan || sink.is_some_and(|sink| sink.is_nan() || sink == f64::INFINITY);
    let max_score = state.running_max.max(sink.unwrap_or(f64::NEG_INFINITY));
    let is_empty = max_score == f64::NEG_INFINITY;
    let factor = match state.running_max {
        f64::NEG_INFINITY => 0.0,
        running_max => (running_max - max_score).exp().max(f64::MIN_POSITIVE),
    };
    let sum_exp = state.sum_exp * factor + sink.map_or(0.0, |sink| (sink - max_score).exp());
    let output = task.sequence.output.at(query, head).cast_mut();
    for (feature, &sum) in sums.iter().enumerate() {
        let value = match (is_nan, is_empty) {
            (true, _) => f64::NAN,
            (false, true) => 0.0,
            (false, false) => sum * factor / sum_exp,
        };
        // SAFETY: the row is inside the output, and only this task writes it.
        unsafe { *output.add(feature) = T::from_f32(value as f32) };
    }
    let lse = match (is_nan, is_empty) {
        (true, _) => f64::NAN,
        (false, true) => f64::NEG_INFINITY,
        (false, false) => max_score + sum_exp.ln(),
    };
    write_lse(&task.sequence.lse, query, head, lse as f32);
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.score_mod",
    operation = "attention.gqa.prefill",
    specialized = "attention.standard.prefill",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits(
        "head_dim <= 256" => HEAD_DIM_TOO_LARGE,
        "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE,
        "given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED
    ),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> AttentionGqaPrefillKernel for ModifiedPrefill<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillCall<'_>,
        mut out: AttentionGqaPrefillOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let modifier = Modifier::new(call.score_mod.as_ref(), call.score_params.as_ref())?;
        with_float!(call.dtype_t, T => {
            prefill::with_problem::<T>(call, &mut out, |problem| attend_all(s, problem, &modifier))
        })
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.decode.score_mod",
    operation = "attention.gqa.decode",
    specialized = "attention.standard.decode",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits(
        "head_dim <= 256" => HEAD_DIM_TOO_LARGE,
        "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE,
        "given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED
    ),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> AttentionGqaDecodeKernel for ModifiedDecode<S> {
    fn run(
        &self,
        call: &AttentionGqaDecodeCall<'_>,
        mut out: AttentionGqaDecodeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let modifier = Modifier::new(call.score_mod.as_ref(), call.score_params.as_ref())?;
        with_float!(call.dtype_t, T => {
            Decode::grouped(call).with_problem::<T>(&mut out.output, out.lse.as_mut(), |problem| {
                attend_all(s, problem, &modifier);
                Ok(())
            })
        })
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.ragged.score_mod",
    operation = "attention.gqa.prefill.ragged",
    specialized = "attention.standard.prefill.ragged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits(
        "head_dim <= 256" => HEAD_DIM_TOO_LARGE,
        "head_dim_v <= 256" => HEAD_DIM_TOO_LARGE,
        "given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED
    ),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> AttentionGqaPrefillRaggedKernel for ModifiedPrefillRagged<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillRaggedCall<'_>,
        mut out: AttentionGqaPrefillRaggedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let modifier = Modifier::new(call.score_mod.as_ref(), call.score_params.as_ref())?;
        with_float!(call.dtype_t, T => {
            ragged::with_problem::<T>(call, &mut out, |problem, qo_indptr| {
                single_threaded_unless_sorted(qo_indptr, || attend_all(s, problem, &modifier));
            })
        })
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.prefill.paged.score_mod",
    operation = "attention.gqa.prefill.paged",
    specialized = "attention.standard.prefill.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits(
        "head_dim <= 256" => HEAD_DIM_TOO_LARGE,
        "given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED
    ),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> AttentionGqaPrefillPagedKernel for ModifiedPrefillPaged<S> {
    fn run(
        &self,
        call: &AttentionGqaPrefillPagedCall<'_>,
        mut out: AttentionGqaPrefillPagedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let modifier = Modifier::new(call.score_mod.as_ref(), call.score_params.as_ref())?;
        let paged = Paged::prefill(call)?;
        let (qo_indptr, total) = (index_slice(&call.qo_indptr, &[])?, call.axes.total_q);
        let queries = |b: usize| span(qo_indptr, b, total);
        with_float!(call.dtype_t, T => paged.run::<T>(&mut out.output, out.lse.as_mut(), &queries, |problem| {
            single_threaded_unless_sorted(qo_indptr, || attend_all(s, problem, &modifier));
            Ok(())
        }))
    }
}

#[lz_macros::kernel(
    id = "cpu.attention.gqa.decode.paged.score_mod",
    operation = "attention.gqa.decode.paged",
    specialized = "attention.standard.decode.paged",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    limits(
        "head_dim <= 256" => HEAD_DIM_TOO_LARGE,
        "given(score_mod)" => OPTIONAL_INPUT_UNSUPPORTED
    ),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> AttentionGqaDecodePagedKernel for ModifiedDecodePaged<S> {
    fn run(
        &self,
        call: &AttentionGqaDecodePagedCall<'_>,
        mut out: AttentionGqaDecodePagedOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let modifier = Modifier::new(call.score_mod.as_ref(), call.score_params.as_ref())?;
        let paged = Paged::decode(call)?;
        let queries = |b: usize| b as i64..b as i64 + 1;
        with_float!(call.dtype_t, T => paged.run::<T>(&mut out.output, out.lse.as_mut(), &queries, |problem| {
            attend_all(s, problem, &modifier);
            Ok(())
        }))
    }
}
