//! One row in f64, key by key: for rows that contain non-finite values, or scores too large for f32.

use super::problem::Rows;
use super::task::{Ranges, Task};
use crate::simd::Float;

/// Maximum head dimension of a value.
pub(super) const MAX_HEAD_DIM: usize = 512;

/// Recomputes a row (relative to the first row of the task) and writes it.
#[cold]
#[inline(never)]
pub(super) fn write_row<T: Float>(task: &Task<'_, '_, T>, row: usize, ranges: Ranges<'_>) {
    let (query, head) = task.row(row);
    let (mut running_max, mut nan) = (f64::NEG_INFINITY, false);
    for_each_score(task, row, ranges, &mut |_, score| {
        nan |= score.is_nan() || score == f64::INFINITY;
        running_max = running_max.max(score);
    });
    // SAFETY: the head is one of the call, which has a sink for each.
    let sink = task.sequence.sinks.and_then(|sinks| unsafe { sinks.at(head) }).map(f64::from);
    if let Some(sink) = sink {
        nan |= sink.is_nan() || sink == f64::INFINITY;
        running_max = running_max.max(sink);
    }
    let mut sum_exp = sink.map_or(0.0, |sink| (sink - running_max).exp());
    let mut sums = [0.0f64; MAX_HEAD_DIM];
    let sums = &mut sums[..task.shape.dim_v.min(MAX_HEAD_DIM)];
    let lse = if nan {
        sums.fill(f64::NAN);
        f64::NAN
    } else if running_max == f64::NEG_INFINITY {
        f64::NEG_INFINITY
    } else {
        for_each_score(task, row, ranges, &mut |key, score| {
            // In exact arithmetic no weight is zero: the smallest one still propagates an infinity or NaN of
            // its value.
            let weight = (score - running_max).exp().max(f64::MIN_POSITIVE);
            sum_exp += weight;
            let address = task.sequence.key(key, task.head);
            let values = if task.shape.shared { address[0] } else { address[2] };
            for (feature, sum) in sums.iter_mut().enumerate() {
                // SAFETY: keys of the sequence are inside their tensor.
                *sum += weight * f64::from(unsafe { *values.add(feature) }.to_f32());
            }
        });
        sums.iter_mut().for_each(|sum| *sum /= sum_exp);
        running_max + sum_exp.ln()
    };
    let output = task.sequence.output.at(query, head).cast_mut();
    for (feature, &sum) in sums.iter().enumerate() {
        // SAFETY: the row is inside the output, and only this task writes it.
        unsafe { *output.add(feature) = T::from_f32(sum as f32) };
    }
    write_lse(&task.sequence.lse, query, head, lse as f32);
}

/// Calls `take` for every key that is not masked out, with its score.
fn for_each_score<T: Float>(
    task: &Task<'_, '_, T>,
    row: usize,
    ranges: Ranges<'_>,
    take: &mut dyn FnMut(usize, f64),
) {
    let (shape, sequence) = (task.shape, task.sequence);
    let (query, head) = task.row(row);
    let (index, visible) = (task.query_position(row), task.visible(row));
    ranges(&mut |range| {
        for key in range {
            if !visible.contains(&key) && task.needs_positions() {
                continue;
            }
            // SAFETY: queries and keys of the sequence are inside their tensors; mask and slopes cover its
            // heads, queries and keys.
            let score = unsafe {
                let added = sequence.mask.map_or(0.0, |mask| mask.at(head, query, key));
                let parts = [sequence.q.at(query, head), sequence.q_second.at(query, head)];
                let address = sequence.key(key, task.head);
                let mut dot = 0.0f64;
                for (part, &count) in shape.dims.iter().enumerate() {
                    for feature in 0..count {
                        let (q, k) = (*parts[part].add(feature), *address[part].add(feature));
                        dot += f64::from(q.to_f32()) * f64::from(k.to_f32());
                    }
                }
                let mut score = dot * shape.exact_scale;
                if shape.soft_cap > 0.0 {
                    let soft_cap = f64::from(shape.soft_cap);
                    score = soft_cap * (score / soft_cap).tanh();
                }
                if let Some(slopes) = sequence.slopes {
                    score += f64::from(slopes.at(head)) * (key as i64 - index) as f64;
                }
                if added == f32::NEG_INFINITY && sequence.mask.is_some_and(|mask| mask.is_boolean()) {
                    f64::NEG_INFINITY
                } else {
                    score + f64::from(added)
                }
            };
            if score != f64::NEG_INFINITY {
                take(key, score);
            }
        }
    });
}

/// Writes the log-sum-exp of a row, if requested.
pub(super) fn write_lse(lse: &Rows<f32>, query: usize, head: usize, value: f32) {
    if !lse.data.is_null() {
        // SAFETY: the element is inside the lse, and only the task of this row writes it.
        unsafe { *lse.at(query, head).cast_mut() = value };
    }
}
