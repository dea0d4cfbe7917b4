//! One query per sequence over so few keys that partitioning into tasks and tiles would cost more than the
//! attention itself: all scores of a row stay in registers and in a small stack buffer.
//!
//! Whether a call takes this path depends neither on batch size nor on the number of heads, so results are
//! batch-invariant.

use std::f32::consts::LOG2_E;
use std::mem::MaybeUninit;

use super::exact;
use super::problem::{Sequence, Shape};
use super::run::{Problem, for_each, write_row};
use super::task::{Task, max_accurate_bound};
use crate::simd::{Float, Simd, exp2, vectors};

/// Maximum number of keys of a short call; a multiple of every vector length.
pub(super) const KEYS: usize = 16;

/// Maximum head dimension of a value.
const MAX_HEAD_DIM: usize = 256;

/// Whether scores are plain dot products (no mask, window or soft cap), and rows fit.
pub(super) fn supports(shape: &Shape) -> bool {
    let plain = shape.dims[1] == 0 && !shape.shared && shape.dim_v <= MAX_HEAD_DIM;
    let unmasked = !shape.causal && shape.window_left < 0 && shape.window_right < 0;
    plain && unmasked && shape.soft_cap <= 0.0
}

/// Attention of the only query of every sequence, without mask and slopes, over at most [`KEYS`] keys.
pub(super) fn run<S: Simd, T: Float>(s: S, problem: &Problem<'_, '_, T>) {
    let shape = &problem.shape;
    let sequences = problem.sequence;
    let work = problem.sequences * shape.kv_heads * shape.group * KEYS * (shape.dim() + shape.dim_v);
    for_each(work, problem.sequences, &|index| {
        let sequence = sequences(index);
        for head in 0..shape.kv_heads * shape.group {
            attend(s, shape, &sequence, head);
        }
    });
}

/// Attention of the query of one head.
fn attend<S: Simd, T: Float>(s: S, shape: &Shape, sequence: &Sequence<'_, T>, head: usize) {
    let (kv_head, row) = (head / shape.group, head % shape.group);
    let task = Task { shape, sequence, head: kv_head, heads: 1, rows: row..row + 1, next_head: None };
    let keys = sequence.keys.min(KEYS);
    let mut accumulator = MaybeUninit::<[f32; MAX_HEAD_DIM]>::uninit();
    let accumulator = accumulator.as_mut_ptr().cast::<f32>();
    let (running_max, sum_exp) = state(s, &task, keys, accumulator);
    if !write_row(s, &task, 0, running_max, sum_exp, accumulator) {
        exact::write_row(&task, 0, &|take| take(0..keys));
    }
}

/// Returns the maximum score of a row and its sum of exponentials, and writes its weighted sum of values. The
/// sum is NaN if f32 is not accurate enough.
#[inline(never)]
fn state<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, keys: usize, accumulator: *mut f32) -> (f32, f32) {
    let (shape, sequence) = (task.shape, task.sequence);
    let q = sequence.q.at(0, task.row(0).1);
    let scale = shape.scale * LOG2_E;
    s.vectorize(|| {
        // SAFETY: the query and its keys are inside their tensors; there are at most KEYS scores and
        // MAX_HEAD_DIM accumulators.
        unsafe {
            let mut scores = [f32::NEG_INFINITY; KEYS];
            let (mut bound, mut largest) = (s.splat(0.0), s.splat(0.0));
            vectors!(S, shape.dims[0], |span| {
                bound = s.add(bound, s.abs(T::load(s, q, span)));
            });
            for (key, score) in scores[..keys].iter_mut().enumerate() {
                let from = sequence.k.at(key, task.head);
                let mut sum = s.splat(0.0);
                vectors!(S, shape.dims[0], |span| {
                    let value = T::load(s, from, span);
                    largest = s.max(s.abs(value), largest);
                    sum = s.fma(T::load(s, q, span), value, sum);
                });
                *score = s.sum(sum) * scale;
            }
            let mut running_max = s.splat(f32::NEG_INFINITY);
            for at in (0..keys).step_by(S::LANES) {
                running_max = s.max(s.load(scores.as_ptr().add(at)), running_max);
            }
            let running_max = s.largest(running_max);
            let (base, mut sum_exp) = (s.splat(running_max.max(f32::MIN)), s.splat(0.0));
            for at in (0..keys).step_by(S::LANES) {
                let weight = exp2(s, s.sub(s.load(scores.as_ptr().add(at)), base));
                s.store(scores.as_mut_ptr().add(at), weight);
                sum_exp = s.add(sum_exp, weight);
            }
            vectors!(S, shape.dim_v, |span| {
                let mut sum = s.splat(0.0);
                for (key, &weight) in scores[..keys].iter().enumerate() {
                    sum = s.fma(s.splat(weight), T::load(s, sequence.v.at(key, task.head), span), sum);
                }
                <f32 as Float>::store(s, accumulator, span, sum);
            });
            let max_score = s.sum(bound) * scale.abs() * s.largest(largest);
            let sound = max_score <= max_accurate_bound::<T>();
            (running_max, if sound { s.sum(sum_exp) } else { f32::NAN })
        }
    })
}
