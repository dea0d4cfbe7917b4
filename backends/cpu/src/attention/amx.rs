//! Many rows of bf16 on AMX tiles: QK^T and PV as tile products, online softmax in f32 between them.
//!
//! As in `tile`, but scores are stored by rows: queries and weights are A operands without packing, keys and
//! values are B operands packed in pairs (VNNI layout). Weights are rounded to bf16, accumulators are not.
//! Non-finite values are detected as in `tile`.

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::bf16;

use super::math::tanh;
use super::problem::{Key, Shape};
use super::run::Epilogue;
use super::task::{Ranges, Scratch, Task, for_each_tile, max_accurate_bound, on_stack};
use super::tile::prefetch_kv;
use crate::simd::amx::{BYTES, ROW, SIDE, STEP, Tiles, TilesA, TilesC};
use crate::simd::{Avx512, Float, Simd, exp2};

/// Keys of a KV tile; a multiple of [`STEP`].
const KEYS: usize = 128;

/// Rows that are multiplied at once.
const BLOCK: usize = 2 * SIDE;

/// Lane indices.
static LANE_INDICES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Scratch buffers of a task.
struct Buffers {
    q: *mut bf16,
    k: *mut u8,
    v: *mut u8,
    scores: *mut f32,
    weights: *mut bf16,
    /// Head dimensions of queries and of values, rounded up to whole tiles.
    dim: usize,
    width: usize,
    /// Rows, rounded up to whole blocks.
    rows: usize,
}

/// Runs a task and passes the state of its rows to `epilogue`.
///
/// # Safety
/// AMX is available, and `T` is bf16.
pub(super) unsafe fn attend<T: Float>(
    s: Avx512,
    task: &Task<'_, '_, T>,
    ranges: Ranges<'_>,
    epilogue: Epilogue<'_, T>,
) {
    let shape = task.shape;
    let (dim, width, rows) = (
        shape.dim().next_multiple_of(STEP),
        shape.dim_v.next_multiple_of(BLOCK),
        task.rows.len().next_multiple_of(BLOCK),
    );
    // Counted in f32; two bf16 need the space of one.
    let sizes = [
        rows * dim / 2,
        KEYS * dim / 2,
        KEYS * width / 2,
        rows * KEYS,
        rows * KEYS / 2,
        rows * width,
        rows,
        rows,
        rows,
        rows,
    ];
    let all: usize = sizes.iter().map(|size| size.next_multiple_of(16)).sum();
    let body = |buffers: *mut f32| {
        let mut at = 0;
        let [q, k, v, scores, weights, o, running_max, sum_exp, correction, bound] = sizes.map(|size| {
            let part = buffers.wrapping_add(at);
            at += size.next_multiple_of(16);
            part
        });
        let state =
            Scratch { o, width, padded: rows, running_max, sum_exp, correction, bound, ..Scratch::NONE };
        let buffers = Buffers {
            q: q.cast(),
            k: k.cast(),
            v: v.cast(),
            scores,
            weights: weights.cast(),
            dim,
            width,
            rows,
        };
        // SAFETY: the caller guarantees AMX, and the buffers are sized for this task.
        unsafe { all_tiles(s, task, ranges, &buffers, &state) };
        epilogue(task, &state);
    };
    if all <= 3 << 14 {
        on_stack::<{ 3 << 14 }, ()>(body);
    } else if all <= 5 << 14 {
        on_stack::<{ 5 << 14 }, ()>(body);
    } else {
        debug_assert!(all <= 9 << 14, "scratch memory exceeds the limit that the kernels declare");
        on_stack::<{ 9 << 14 }, ()>(body);
    }
}

unsafe fn all_tiles<T: Float>(
    s: Avx512,
    task: &Task<'_, '_, T>,
    ranges: Ranges<'_>,
    buffers: &Buffers,
    state: &Scratch,
) {
    // SAFETY: the caller guarantees AMX and the buffers.
    unsafe {
        let tiles = Tiles::new();
        pack_queries(s, task, buffers, state);
        let mut largest = 0u16;
        for_each_tile::<T, KEYS>(task, ranges, |keys, start, ahead| {
            largest = largest.max(pack_keys(s, task.shape, keys, buffers));
            pack_values(s, task.shape, keys, buffers);
            prefetch_kv(task.shape, ahead);
            one_tile(s, &tiles, task, start, keys.len(), buffers, state);
        });
        for row in 0..task.rows.len() {
            let max_score = *state.bound.add(row) * bf16::from_bits(largest).to_f32();
            if max_score.is_nan() || max_score > max_accurate_bound::<T>() {
                *state.sum_exp.add(row) = f32::NAN;
            }
        }
    }
}

/// Loads features `at .. at + STEP` of a vector in two parts; features past the end are 0.
#[inline(always)]
unsafe fn load_step<T>(parts: [*const T; 2], dims: [usize; 2], at: usize) -> __m512i {
    // SAFETY: the caller guarantees the parts; masked lanes are not accessed.
    unsafe {
        if at + STEP <= dims[0] {
            return _mm512_loadu_si512(parts[0].cast::<u16>().add(at).cast());
        }
        let mut whole = [0u16; STEP];
        for (index, whole) in whole.iter_mut().enumerate() {
            let feature = at + index;
            if feature < dims[0] {
                *whole = *parts[0].cast::<u16>().add(feature);
            } else if feature < dims[0] + dims[1] {
                *whole = *parts[1].cast::<u16>().add(feature - dims[0]);
            }
        }
        _mm512_loadu_si512(whole.as_ptr().cast())
    }
}

#[inline(never)]
unsafe fn pack_queries<T: Float>(s: Avx512, task: &Task<'_, '_, T>, buffers: &Buffers, state: &Scratch) {
    // SAFETY: guaranteed by the caller.
    s.vectorize(|| unsafe { pack_queries_inside(s, task, buffers, state) });
}

#[inline(always)]
unsafe fn pack_queries_inside<T: Float>(
    s: Avx512,
    task: &Task<'_, '_, T>,
    buffers: &Buffers,
    state: &Scratch,
) {
    let shape = task.shape;
    for row in 0..buffers.rows {
        // SAFETY: the caller guarantees the buffers; queries are inside their tensors.
        unsafe {
            let to = buffers.q.add(row * buffers.dim);
            let mut sum = s.splat(0.0);
            if row < task.rows.len() {
                let (query, head) = task.row(row);
                let parts = [task.sequence.q.at(query, head), task.sequence.q_second.at(query, head)];
                for at in (0..buffers.dim).step_by(STEP) {
                    _mm512_storeu_si512(to.add(at).cast(), load_step(parts, shape.dims, at));
                    for half in [0, 16] {
                        sum = s.add(sum, s.abs(s.load_bf16(to.add(at + half).cast())));
                    }
                }
            } else {
                std::ptr::write_bytes(to, 0, buffers.dim);
            }
            *state.bound.add(row) = s.sum(sum) * shape.scale * LOG2_E;
            *state.running_max.add(row) = f32::NEG_INFINITY;
            *state.sum_exp.add(row) = 0.0;
            *state.correction.add(row) = 1.0;
        }
    }
    // SAFETY: as above.
    unsafe { std::ptr::write_bytes(state.o, 0, buffers.rows * buffers.width) };
}

/// Packs keys as B operand: pairs of features of sixteen keys. Returns the bits of the largest absolute
/// feature.
#[inline(never)]
unsafe fn pack_keys<T: Float>(s: Avx512, shape: &Shape, keys: &[Key<T>], buffers: &Buffers) -> u16 {
    // SAFETY: guaranteed by the caller.
    s.vectorize(|| unsafe { pack_keys_inside(s, shape, keys, buffers) })
}

#[inline(always)]
unsafe fn pack_keys_inside<T: Float>(s: Avx512, shape: &Shape, keys: &[Key<T>], buffers: &Buffers) -> u16 {
    #[repr(align(64))]
    struct Block([u16; SIDE * STEP]);
    let mut block = Block([0; SIDE * STEP]);
    let block = block.0.as_mut_ptr();
    // SAFETY: the caller guarantees the buffers; keys are inside their tensors.
    unsafe {
        let sizes = _mm512_set1_epi16(0x7fff);
        let mut largest = _mm512_setzero_si512();
        let steps = buffers.dim / STEP;
        for group in 0..keys.len().next_multiple_of(STEP) / SIDE {
            for step in 0..steps {
                for index in 0..SIDE {
                    let value = match keys.get(group * SIDE + index) {
                        Some(key) => load_step([key[0], key[1]], shape.dims, step * STEP),
                        None => _mm512_setzero_si512(),
                    };
                    largest = _mm512_max_epu16(largest, _mm512_and_si512(value, sizes));
                    _mm512_storeu_si512(block.add(index * STEP).cast(), value);
                }
                let to = buffers.k.add((group * steps + step) * BYTES);
                s.transpose(block.cast(), to.cast(), SIDE);
            }
        }
        let mut each = [0u16; STEP];
        _mm512_storeu_si512(each.as_mut_ptr().cast(), largest);
        each.into_iter().max().unwrap_or(0)
    }
}

/// Packs values as B operand: pairs of keys, feature by feature.
#[inline(never)]
unsafe fn pack_values<T: Float>(s: Avx512, shape: &Shape, keys: &[Key<T>], buffers: &Buffers) {
    // SAFETY: guaranteed by the caller.
    s.vectorize(|| unsafe { pack_values_inside(shape, keys, buffers) });
}

#[inline(always)]
unsafe fn pack_values_inside<T: Float>(shape: &Shape, keys: &[Key<T>], buffers: &Buffers) {
    /// Permutation that interleaves the words of two operands: of their lower halves, and of their upper
    /// halves.
    const INTERLEAVE: [[u16; STEP]; 2] = {
        let mut interleave = [[0; STEP]; 2];
        let mut index = 0;
        while index < STEP {
            interleave[0][index] = (index / 2 + index % 2 * STEP) as u16;
            interleave[1][index] = interleave[0][index] + (STEP / 2) as u16;
            index += 1;
        }
        interleave
    };
    let dims = [shape.dim_v, 0];
    // SAFETY: the caller guarantees the buffers; values are inside their tensors.
    unsafe {
        let low = _mm512_loadu_si512(INTERLEAVE[0].as_ptr().cast());
        let high = _mm512_loadu_si512(INTERLEAVE[1].as_ptr().cast());
        for pair in 0..keys.len().next_multiple_of(STEP) / 2 {
            let row = pair % SIDE;
            for at in (0..buffers.width).step_by(STEP) {
                let mut values = [_mm512_setzero_si512(); 2];
                for (value, key) in values.iter_mut().zip(keys.iter().skip(2 * pair)) {
                    let address = if shape.shared { key[0] } else { key[2] };
                    *value = load_step([address, std::ptr::null()], dims, at);
                }
                let [even, odd] = values;
                // One row of tiles per sixteen features, with a tile for every thirty-two keys.
                let tile = at / SIDE * (KEYS / STEP) + pair / SIDE;
                let to = buffers.v.add(tile * BYTES + row * 64);
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(even, low, odd));
                let to = to.add(KEYS / STEP * BYTES);
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(even, high, odd));
            }
        }
    }
}

unsafe fn one_tile<T: Float>(
    s: Avx512,
    tiles: &Tiles,
    task: &Task<'_, '_, T>,
    start: usize,
    keys: usize,
    buffers: &Buffers,
    state: &Scratch,
) {
    let positional = task.needs_positions();
    let steps = buffers.dim / STEP;
    for first in (0..task.rows.len()).step_by(BLOCK) {
        let last = (first + BLOCK).min(task.rows.len()) - 1;
        let mut range = 0..keys;
        if positional {
            let (early, late) = (task.visible(first), task.visible(last));
            range = early.start.max(start) - start..late.end.min(start + keys).max(start) - start;
        }
        if range.is_empty() {
            continue;
        }
        let range = range.start / STEP * STEP..range.end.next_multiple_of(STEP);
        // SAFETY: the caller guarantees AMX and the buffers, which hold whole blocks.
        unsafe {
            let query = buffers.q.add(first * buffers.dim).cast::<u8>();
            for key in range.clone().step_by(BLOCK) {
                let right = buffers.k.add(key / SIDE * steps * BYTES);
                let to = buffers.scores.add(first * KEYS + key);
                tiles.multiply(
                    TilesA {
                        tiles: [query, query.add(SIDE * buffers.dim * 2)],
                        row: buffers.dim * 2,
                        step: ROW,
                    },
                    [right, right.add(steps * BYTES)],
                    steps,
                    TilesC {
                        tiles: [[to, to.add(SIDE)], [to.add(SIDE * KEYS), to.add(SIDE * KEYS + SIDE)]],
                        row: KEYS * 4,
                        add: false,
                    },
                );
            }
            for row in first..first + BLOCK {
                if row <= last {
                    let factor = apply_score_modifiers(s, task, row, start, keys, range.clone(), buffers);
                    softmax(s, row, factor, range.clone(), buffers, state);
                } else {
                    std::ptr::write_bytes(buffers.weights.add(row * KEYS), 0, KEYS);
                }
            }
            let weights = buffers.weights.add(first * KEYS + range.start).cast::<u8>();
            for feature in (0..buffers.width).step_by(BLOCK) {
                let tile = feature / SIDE * (KEYS / STEP) + range.start / STEP;
                let right = buffers.v.add(tile * BYTES);
                let to = state.o.add(first * buffers.width + feature);
                let below = to.add(SIDE * buffers.width);
                tiles.multiply(
                    TilesA { tiles: [weights, weights.add(SIDE * KEYS * 2)], row: KEYS * 2, step: ROW },
                    [right, right.add(KEYS / STEP * BYTES)],
                    range.len() / STEP,
                    TilesC {
                        tiles: [[to, to.add(SIDE)], [below, below.add(SIDE)]],
                        row: buffers.width * 4,
                        add: true,
                    },
                );
            }
        }
    }
}

/// Applies soft cap, ALiBi slopes, mask and causal/window limits to the scores of one row. Returns the scale
/// that the scores must still be multiplied by.
#[inline(never)]
unsafe fn apply_score_modifiers<T: Float>(
    s: Avx512,
    task: &Task<'_, '_, T>,
    row: usize,
    start: usize,
    keys: usize,
    range: Range<usize>,
    buffers: &Buffers,
) -> f32 {
    let (shape, sequence) = (task.shape, task.sequence);
    let visible = if task.needs_positions() { task.visible(row) } else { start..start + keys };
    let first = visible.start.saturating_sub(start).min(keys);
    let last = visible.end.saturating_sub(start).clamp(first, keys);
    let edge = first > range.start || last < range.end;
    let (slopes, masked) = (sequence.slopes, sequence.mask);
    if !edge && slopes.is_none() && masked.is_none() && shape.soft_cap <= 0.0 {
        return shape.scale * LOG2_E;
    }
    let (query, head) = task.row(row);
    let mut mask = [0.0f32; KEYS];
    // SAFETY: mask and slopes are borrowed by the call and cover the row and its keys.
    let slope = unsafe {
        if let Some(view) = masked {
            view.read(head, query, start + first..start + last, &mut mask[first..last]);
        }
        slopes.map_or(0.0, |slopes| slopes.at(head))
    };
    let distance = task.query_position(row).saturating_sub(start as i64);
    s.vectorize(|| {
        let query_position = s.splat(if distance.abs() < 1 << 23 { distance as f32 } else { f32::NAN });
        for at in range.step_by(16) {
            // SAFETY: the caller guarantees the buffers.
            unsafe {
                let to = buffers.scores.add(row * KEYS + at);
                let number = s.add(s.splat(at as f32), s.load(LANE_INDICES.as_ptr()));
                let mut score = s.load(to);
                if shape.soft_cap > 0.0 {
                    let part = s.mul(score, s.splat(shape.scale / shape.soft_cap));
                    score = s.mul(tanh(s, part), s.splat(shape.soft_cap * LOG2_E));
                } else {
                    score = s.mul(score, s.splat(shape.scale * LOG2_E));
                }
                if slopes.is_some() {
                    score = s.fma(s.splat(slope * LOG2_E), s.sub(number, query_position), score);
                }
                if masked.is_some() {
                    score = s.fma(s.load(mask.as_ptr().add(at)), s.splat(LOG2_E), score);
                }
                let hidden = s.splat(f32::NEG_INFINITY);
                score = s.select(s.lt(number, s.splat(last as f32)), score, hidden);
                score = s.select(s.lt(number, s.splat(first as f32)), hidden, score);
                s.store(to, score);
            }
        }
    });
    1.0
}

/// Online softmax step: turns the scores of a row (times `factor`) into weights, and rescales its
/// accumulators.
///
/// # Safety
/// The buffers are sized for the task, and the processor has these features, as every processor with AMX
/// does.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,avx512bf16")]
unsafe fn softmax(
    s: Avx512,
    row: usize,
    factor: f32,
    range: Range<usize>,
    buffers: &Buffers,
    state: &Scratch,
) {
    // SAFETY: the caller guarantees the buffers.
    unsafe {
        let scores = buffers.scores.add(row * KEYS);
        let before = *state.running_max.add(row);
        let mut running_max = s.splat(f32::NEG_INFINITY);
        for at in range.clone().step_by(16) {
            running_max = s.max(s.load(scores.add(at)), running_max);
        }
        let running_max = (s.largest(running_max) * factor).max(before);
        let base = running_max.max(f32::MIN);
        let (mut sum_exp, factor, shift) = (s.splat(0.0), s.splat(factor), s.splat(-base));
        let weights = buffers.weights.add(row * KEYS);
        for at in range.step_by(16) {
            let weight = exp2(s, s.fma(s.load(scores.add(at)), factor, shift));
            sum_exp = s.add(sum_exp, weight);
            // No weight is a denormal, so the instruction rounds to nearest even.
            weights.add(at).cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(weight));
        }
        let correction = if before == running_max { 1.0 } else { (before - base).exp2() };
        *state.sum_exp.add(row) = *state.sum_exp.add(row) * correction + s.sum(sum_exp);
        *state.running_max.add(row) = running_max;
        if correction != 1.0 {
            let o = state.o.add(row * buffers.width);
            for at in (0..buffers.width).step_by(16) {
                s.store(o.add(at), s.mul(s.load(o.add(at)), s.splat(correction)));
            }
        }
    }
}
