//! One row in f64, key by key: for rows in which something is not finite, or too large for f32 to be trusted.

use super::problem::Rows;
use super::task::{Ranges, Task};
use crate::simd::Float;

/// Most features of a value.
pub(super) const MOST_FEATURES: usize = 512;

/// Computes a row (counted from the first of the task) anew and writes it.
#[cold]
#[inline(never)]
pub(super) fn write_row<T: Float>(task: &Task<'_, '_, T>, row: usize, ranges: Ranges<'_>) {
    let (query, head) = task.row(row);
    let (mut highest, mut nan) = (f64::NEG_INFINITY, false);
    each_score(task, row, ranges, &mut |_, score| {
        nan |= score.is_nan() || score == f64::INFINITY;
        highest = highest.max(score);
    });
    let (mut sums, mut total) = ([0.0f64; MOST_FEATURES], 0.0);
    let sums = &mut sums[..task.shape.dim_v.min(MOST_FEATURES)];
    let lse = if nan {
        sums.fill(f64::NAN);
        f64::NAN
    } else if highest == f64::NEG_INFINITY {
        f64::NEG_INFINITY
    } else {
        each_score(task, row, ranges, &mut |key, score| {
            // In exact arithmetic no weight is zero: the smallest one still carries an infinity or a NaN of its value.
            let weight = (score - highest).exp().max(f64::MIN_POSITIVE);
            total += weight;
            let address = task.sequence.key(key, task.head);
            let values = if task.shape.shared { address[0] } else { address[2] };
            for (feature, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a key of the sequence lies inside its tensor.
                *sum += weight * f64::from(unsafe { *values.add(feature) }.to_f32());
            }
        });
        sums.iter_mut().for_each(|sum| *sum /= total);
        highest + total.ln()
    };
    let output = task.sequence.output.at(query, head).cast_mut();
    for (feature, &sum) in sums.iter().enumerate() {
        // SAFETY: the row lies inside the output, and only this task writes it.
        unsafe { *output.add(feature) = T::from_f32(sum as f32) };
    }
    write_lse(&task.sequence.lse, query, head, lse as f32);
}

/// Hands every key that takes part, with its score.
fn each_score<T: Float>(
    task: &Task<'_, '_, T>,
    row: usize,
    ranges: Ranges<'_>,
    take: &mut dyn FnMut(usize, f64),
) {
    let (shape, sequence) = (task.shape, task.sequence);
    let (query, head) = task.row(row);
    let (place, visible) = (task.place(row), task.visible(row));
    ranges(&mut |range| {
        for key in range {
            if !visible.contains(&key) && task.looks_at_places() {
                continue;
            }
            // SAFETY: queries and keys of the sequence lie inside their tensors; mask and slopes cover its heads, queries and keys.
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
                let mut score = dot * f64::from(shape.scale);
                if shape.soft_cap > 0.0 {
                    let soft_cap = f64::from(shape.soft_cap);
                    score = soft_cap * (score / soft_cap).tanh();
                }
                if let Some(slopes) = sequence.slopes {
                    score += f64::from(slopes.at(head)) * (key as i64 - place) as f64;
                }
                if added == f32::NEG_INFINITY && sequence.mask.is_some_and(|mask| mask.hides()) {
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

/// Writes the lse of a row where one is wanted.
pub(super) fn write_lse(lse: &Rows<f32>, query: usize, head: usize, value: f32) {
    if !lse.data.is_null() {
        // SAFETY: the place lies inside the lse, and only the task of this row writes it.
        unsafe { *lse.at(query, head).cast_mut() = value };
    }
}
