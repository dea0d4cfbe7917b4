//! One query a sequence over so few keys that cutting the call into tasks and tiles would cost more than attending: all scores of
//! a row stay in registers and on a few bytes of stack.
//!
//! Whether a call is short depends on nothing that batch or heads decide, so a row gets the same bits in whichever company.

use std::f32::consts::LOG2_E;
use std::mem::MaybeUninit;

use super::careful;
use super::problem::{Sequence, Shape};
use super::run::{Problem, for_each, write_row};
use super::task::{Task, trusted};
use crate::simd::{Float, Simd, exp2, vectors};

/// Most keys of a short call; a multiple of every vector's lanes.
pub(super) const KEYS: usize = 16;

/// Most features of a value.
const MOST_DIM: usize = 256;

/// Whether scores are products and nothing else, and rows fit.
pub(super) fn takes(shape: &Shape) -> bool {
    let alone = shape.dims[1] == 0 && !shape.shared && shape.dim_v <= MOST_DIM;
    let everywhere = !shape.causal && shape.window_left < 0 && shape.window_right < 0;
    alone && everywhere && shape.soft_cap <= 0.0
}

/// Attends from the one query of every sequence, which has neither mask nor slopes, to at most [`KEYS`] keys.
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

/// Attends from the query of one head.
fn attend<S: Simd, T: Float>(s: S, shape: &Shape, sequence: &Sequence<'_, T>, head: usize) {
    let (kv_head, row) = (head / shape.group, head % shape.group);
    let task = Task { shape, sequence, head: kv_head, heads: 1, rows: row..row + 1, next_head: None };
    let keys = sequence.keys.min(KEYS);
    let mut average = MaybeUninit::<[f32; MOST_DIM]>::uninit();
    let average = average.as_mut_ptr().cast::<f32>();
    let (highest, total) = state(s, &task, keys, average);
    if !write_row(s, &task, 0, highest, total, average) {
        careful::write_row(&task, 0, &|take| take(0..keys));
    }
}

/// The highest score of a row, the sum of its weights, and its weighted sums of values. The sum is NaN if f32 is not to be trusted
/// with it.
#[inline(never)]
fn state<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, keys: usize, average: *mut f32) -> (f32, f32) {
    let (shape, sequence) = (task.shape, task.sequence);
    let q = sequence.q.at(0, task.row(0).1);
    let scale = shape.scale * LOG2_E;
    s.vectorize(|| {
        // SAFETY: the query and its keys lie inside their tensors; there are at most KEYS scores and MOST_DIM sums.
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
            let mut highest = s.splat(f32::NEG_INFINITY);
            for at in (0..keys).step_by(S::LANES) {
                highest = s.max(s.load(scores.as_ptr().add(at)), highest);
            }
            let highest = s.largest(highest);
            let (base, mut total) = (s.splat(highest.max(f32::MIN)), s.splat(0.0));
            for at in (0..keys).step_by(S::LANES) {
                let weight = exp2(s, s.sub(s.load(scores.as_ptr().add(at)), base));
                s.store(scores.as_mut_ptr().add(at), weight);
                total = s.add(total, weight);
            }
            vectors!(S, shape.dim_v, |span| {
                let mut sum = s.splat(0.0);
                for (key, &weight) in scores[..keys].iter().enumerate() {
                    sum = s.fma(s.splat(weight), T::load(s, sequence.v.at(key, task.head), span), sum);
                }
                <f32 as Float>::store(s, average, span, sum);
            });
            let most = s.sum(bound) * scale.abs() * s.largest(largest);
            let sound = most <= trusted::<T>();
            (highest, if sound { s.sum(total) } else { f32::NAN })
        }
    })
}
