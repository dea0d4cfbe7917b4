//! A few rows over keys that are read once, straight from where they lie: nothing is packed, memory is the limit.
//!
//! Every vector of a key or a value is loaded once for up to four rows of the group. Scores and weights of a tile of keys stay
//! in the first-level cache.

use std::f32::consts::LOG2_E;

use super::math::tanh;
use super::problem::Key;
use super::task::{Ranges, Scratch, Task, for_each_tile, trusted};
use crate::simd::{Float, Part, Simd, Span, Whole, exp2, prefetch_all, vectors};

/// Most rows that are streamed.
pub(super) const STREAMED_ROWS: usize = 8;

/// Keys of a tile; a multiple of every vector's lanes, and not more than the scratch memory's.
const KEYS: usize = 64;

/// 0, 1, 2, …: places of lanes.
static COUNTED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// As `tile::attend`, for at most [`STREAMED_ROWS`] rows and keys of one part.
pub(super) fn attend<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, ranges: Ranges<'_>, scratch: &Scratch) {
    begin(s, task, scratch);
    let mut largest = 0.0f32;
    for_each_tile::<T, KEYS>(task, ranges, |keys, start, ahead| {
        largest = largest.max(one_tile(s, task, keys, start, ahead, scratch));
    });
    for row in 0..task.rows.len() {
        // SAFETY: the scratch memory has a place for each row.
        unsafe {
            let most = *scratch.bound.add(row) * largest;
            if most.is_nan() || most > trusted::<T>() {
                *scratch.total.add(row) = f32::NAN;
            }
        }
    }
}

fn begin<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, scratch: &Scratch) {
    let shape = task.shape;
    let wide = shape.dims[0].next_multiple_of(S::LANES);
    let scale = if shape.soft_cap > 0.0 { shape.scale / shape.soft_cap } else { shape.scale * LOG2_E };
    let bound = if shape.soft_cap > 0.0 { shape.soft_cap * LOG2_E } else { 1.0 };
    s.vectorize(|| {
        for row in 0..task.rows.len() {
            let (query, head) = task.row(row);
            // SAFETY: the scratch memory was measured for this task, and queries are inside their tensors.
            unsafe {
                let (from, to) = (task.sequence.q.at(query, head), scratch.q.add(row * wide));
                let mut sum = s.splat(0.0);
                vectors!(S, shape.dims[0], |span| {
                    let value = s.mul(T::load(s, from, span), s.splat(scale));
                    sum = s.add(sum, s.abs(value));
                    s.store(to.add(span.at()), value);
                });
                *scratch.bound.add(row) = s.sum(sum) * bound;
                *scratch.slope.add(row) = LOG2_E * task.sequence.slopes.map_or(0.0, |slopes| slopes.at(head));
                *scratch.highest.add(row) = f32::NEG_INFINITY;
                *scratch.total.add(row) = 0.0;
            }
        }
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(scratch.o, 0, task.rows.len() * scratch.width) };
    });
}

/// Each size has a function of its own: a body with all of them would be too large to be inlined into where the instructions are.
fn one_tile<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    keys: &[Key<T>],
    start: usize,
    ahead: &[Key<T>],
    scratch: &Scratch,
) -> f32 {
    let rows = task.rows.len();
    let mut largest = 0.0f32;
    for row in (0..rows).step_by(4) {
        largest = largest.max(match rows - row {
            1 => scores::<S, T, 1>(s, task, keys, row, ahead, scratch),
            2 => scores::<S, T, 2>(s, task, keys, row, ahead, scratch),
            3 => scores::<S, T, 3>(s, task, keys, row, ahead, scratch),
            _ => scores::<S, T, 4>(s, task, keys, row, ahead, scratch),
        });
    }
    for row in 0..rows {
        adjust(s, task, keys.len(), start, row, scratch);
        softmax(s, keys.len(), row, scratch);
    }
    for row in (0..rows).step_by(4) {
        match rows - row {
            1 => average::<S, T, 1>(s, task, keys, row, ahead, scratch),
            2 => average::<S, T, 2>(s, task, keys, row, ahead, scratch),
            3 => average::<S, T, 3>(s, task, keys, row, ahead, scratch),
            _ => average::<S, T, 4>(s, task, keys, row, ahead, scratch),
        }
    }
    largest
}

/// Scores of `R` rows, one row after the other; what lies between the last key and the end of its vector is -∞.
#[inline(never)]
fn scores<S: Simd, T: Float, const R: usize>(
    s: S,
    task: &Task<'_, '_, T>,
    keys: &[Key<T>],
    row: usize,
    ahead: &[Key<T>],
    scratch: &Scratch,
) -> f32 {
    let dim = task.shape.dims[0];
    // Every line is asked for once, a tile before it is needed.
    let ahead = if row == 0 { ahead } else { &[] };
    let wide = dim.next_multiple_of(S::LANES);
    s.vectorize(|| {
        let mut largest = s.splat(0.0);
        // SAFETY: the scratch memory was measured for this task, and keys are inside their tensors.
        unsafe {
            let (q, to) = (scratch.q.add(row * wide), scratch.scores.add(row * KEYS));
            for (n, key) in keys.iter().enumerate() {
                if let Some(next) = ahead.get(n) {
                    prefetch_all(next[0], dim * size_of::<T>());
                }
                let mut sums = [s.splat(0.0); R];
                vectors!(S, dim, |span| {
                    let value = T::load(s, key[0], span);
                    largest = s.max(s.abs(value), largest);
                    for (m, sum) in sums.iter_mut().enumerate() {
                        *sum = s.fma(s.load(q.add(m * wide + span.at())), value, *sum);
                    }
                });
                for (m, &sum) in sums.iter().enumerate() {
                    *to.add(m * KEYS + n) = s.sum(sum);
                }
            }
            for n in keys.len()..keys.len().next_multiple_of(S::LANES) {
                for m in 0..R {
                    *to.add(m * KEYS + n) = f32::NEG_INFINITY;
                }
            }
        }
        s.largest(largest)
    })
}

/// Caps, slopes, masks and edges, on the scores of one row.
#[inline(never)]
fn adjust<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    keys: usize,
    start: usize,
    row: usize,
    scratch: &Scratch,
) {
    let soft_cap = task.shape.soft_cap;
    let visible = task.visible(row);
    let edge = task.looks_at_places() && (visible.start > start || visible.end < start + keys);
    let (slopes, masked) = (task.sequence.slopes.is_some(), task.sequence.mask);
    if !edge && !slopes && masked.is_none() && soft_cap <= 0.0 {
        return;
    }
    let mut mask = [0.0f32; KEYS];
    if let Some(given) = masked {
        let (query, head) = task.row(row);
        // SAFETY: the mask is borrowed by the call and covers rows and keys.
        unsafe { given.read(head, query, start..start + keys, &mut mask[..keys]) };
    }
    s.vectorize(|| {
        // SAFETY: the scratch memory was measured for this task.
        unsafe {
            let scores = scratch.scores.add(row * KEYS);
            let relative = |key: usize| key.saturating_sub(start).min(keys) as f32;
            let (mut first, mut last) = (s.splat(0.0), s.splat(keys as f32));
            if edge {
                (first, last) = (s.splat(relative(visible.start)), s.splat(relative(visible.end)));
            }
            let distance = task.place(row).saturating_sub(start as i64);
            let place = s.splat(if distance.abs() < 1 << 23 { distance as f32 } else { f32::NAN });
            let slope = s.splat(*scratch.slope.add(row));
            let mut at = 0;
            while at < keys {
                let number = s.add(s.splat(at as f32), s.load(COUNTED.as_ptr()));
                let mut score = s.load(scores.add(at));
                if soft_cap > 0.0 {
                    score = s.mul(tanh(s, score), s.splat(soft_cap * LOG2_E));
                }
                if slopes {
                    score = s.fma(slope, s.sub(number, place), score);
                }
                if masked.is_some() {
                    score = s.fma(s.load(mask.as_ptr().add(at)), s.splat(LOG2_E), score);
                }
                // What fills the last vector stays hidden, whatever was done to it.
                let hidden = s.splat(f32::NEG_INFINITY);
                score = s.select(s.lt(number, last), score, hidden);
                score = s.select(s.lt(number, first), hidden, score);
                s.store(scores.add(at), score);
                at += S::LANES;
            }
        }
    });
}

/// Scores of one row become weights.
#[inline(never)]
fn softmax<S: Simd>(s: S, keys: usize, row: usize, scratch: &Scratch) {
    s.vectorize(|| {
        // SAFETY: the scratch memory was measured for this task.
        unsafe {
            let scores = scratch.scores.add(row * KEYS);
            let before = *scratch.highest.add(row);
            let mut highest = s.splat(before);
            let mut at = 0;
            while at < keys {
                highest = s.max(s.load(scores.add(at)), highest);
                at += S::LANES;
            }
            let highest = s.largest(highest);
            let base = highest.max(f32::MIN);
            let mut total = s.splat(0.0);
            let mut at = 0;
            while at < keys {
                let weight = exp2(s, s.sub(s.load(scores.add(at)), s.splat(base)));
                s.store(scores.add(at), weight);
                total = s.add(total, weight);
                at += S::LANES;
            }
            let correction = match before {
                f32::NEG_INFINITY if highest > before => 0.0,
                _ if before == highest => 1.0,
                _ => (before - base).exp2(),
            };
            *scratch.total.add(row) = *scratch.total.add(row) * correction + s.sum(total);
            *scratch.highest.add(row) = highest;
            *scratch.correction.add(row) = correction;
        }
    });
}

/// Adds the weighted values of a tile to `R` rows.
fn average<S: Simd, T: Float, const R: usize>(
    s: S,
    task: &Task<'_, '_, T>,
    keys: &[Key<T>],
    row: usize,
    ahead: &[Key<T>],
    scratch: &Scratch,
) {
    let dim = task.shape.dim_v;
    let ahead = if row == 0 { ahead } else { &[] };
    let mut at = 0;
    // Four vectors of four rows fill half of the large register files; the small ones take two.
    if S::LANES >= 16 {
        while at + 4 * S::LANES <= dim {
            average_vectors::<S, T, Whole, R, 4>(s, keys, row, Whole(at), ahead, scratch);
            at += 4 * S::LANES;
        }
    }
    while at + 2 * S::LANES <= dim {
        average_vectors::<S, T, Whole, R, 2>(s, keys, row, Whole(at), ahead, scratch);
        at += 2 * S::LANES;
    }
    if at + S::LANES <= dim {
        average_vectors::<S, T, Whole, R, 1>(s, keys, row, Whole(at), ahead, scratch);
        at += S::LANES;
    }
    if at < dim {
        average_vectors::<S, T, Part, R, 1>(s, keys, row, Part(at, dim - at), ahead, scratch);
    }
}

#[inline(never)]
fn average_vectors<S: Simd, T: Float, P: Span, const R: usize, const NV: usize>(
    s: S,
    keys: &[Key<T>],
    row: usize,
    span: P,
    ahead: &[Key<T>],
    scratch: &Scratch,
) {
    s.vectorize(|| {
        // SAFETY: the scratch memory was measured for this task, and values are inside their tensors.
        unsafe {
            let to = scratch.o.add(row * scratch.width + span.at());
            let weights = scratch.scores.add(row * KEYS);
            let mut sums = [[s.splat(0.0); NV]; R];
            for (m, sums) in sums.iter_mut().enumerate() {
                let correction = s.splat(*scratch.correction.add(row + m));
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = s.mul(s.load(to.add(m * scratch.width + n * S::LANES)), correction);
                }
            }
            for (key, address) in keys.iter().enumerate() {
                if let Some(next) = ahead.get(key) {
                    prefetch_all(next[2].wrapping_add(span.at()), NV * S::LANES * size_of::<T>());
                }
                let mut values = [s.splat(0.0); NV];
                for (n, value) in values.iter_mut().enumerate() {
                    *value = if NV == 1 {
                        T::load(s, address[2], span)
                    } else {
                        T::load(s, address[2], Whole(span.at() + n * S::LANES))
                    };
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    let weight = s.splat(*weights.add(m * KEYS + key));
                    for (sum, &value) in sums.iter_mut().zip(&values) {
                        *sum = s.fma(weight, value, *sum);
                    }
                }
            }
            for (m, sums) in sums.iter().enumerate() {
                for (n, &sum) in sums.iter().enumerate() {
                    s.store(to.add(m * scratch.width + n * S::LANES), sum);
                }
            }
        }
    });
}
