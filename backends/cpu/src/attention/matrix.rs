//! Many rows of bf16 on AMX tiles: scores and averages as products of tiles, softmax in f32 between them.
//!
//! As in `tile`, but scores are kept by rows: queries and weights are left factors as they lie, keys and values are packed in
//! pairs. Weights are rounded to bf16, sums are not. What is not finite shows as it does there.

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;
use std::ops::Range;

use half::bf16;

use super::math::tanh;
use super::problem::{Key, Shape};
use super::run::End;
use super::task::{Ranges, Scratch, Task, for_each_tile, on_stack, trusted};
use super::tile::ask_for;
use crate::simd::tiles::{BYTES, Left, ROW, SIDE, STEP, Sums, Tiles};
use crate::simd::{Avx512, Float, Simd, exp2};

/// Keys of a tile; a multiple of [`STEP`].
const KEYS: usize = 128;

/// Rows that are multiplied at once.
const BLOCK: usize = 2 * SIDE;

/// 0, 1, 2, …: places of lanes.
static COUNTED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Scratch memory of a task.
struct Memory {
    q: *mut bf16,
    k: *mut u8,
    v: *mut u8,
    scores: *mut f32,
    weights: *mut bf16,
    /// Features of a query and of a value, rounded up to whole tiles.
    dim: usize,
    width: usize,
    /// Rows, rounded up to whole blocks.
    rows: usize,
}

/// Runs a task and hands the state of its rows to `end`.
///
/// # Safety
/// AMX is available, and `T` is bf16.
pub(super) unsafe fn attend<T: Float>(
    s: Avx512,
    task: &Task<'_, '_, T>,
    ranges: Ranges<'_>,
    end: End<'_, T>,
) {
    let shape = task.shape;
    let (dim, width, rows) = (
        shape.dim().next_multiple_of(STEP),
        shape.dim_v.next_multiple_of(BLOCK),
        task.rows.len().next_multiple_of(BLOCK),
    );
    // In f32; two bf16 take the room of one.
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
    let body = |memory: *mut f32| {
        let mut at = 0;
        let [q, k, v, scores, weights, o, highest, total, correction, bound] = sizes.map(|size| {
            let part = memory.wrapping_add(at);
            at += size.next_multiple_of(16);
            part
        });
        let state = Scratch { o, width, padded: rows, highest, total, correction, bound, ..Scratch::NONE };
        let memory = Memory {
            q: q.cast(),
            k: k.cast(),
            v: v.cast(),
            scores,
            weights: weights.cast(),
            dim,
            width,
            rows,
        };
        // SAFETY: the caller vouches for AMX, and the memory was measured for this task.
        unsafe { all_tiles(s, task, ranges, &memory, &state) };
        end(task, &state);
    };
    if all <= 3 << 14 {
        on_stack::<{ 3 << 14 }, ()>(body);
    } else if all <= 5 << 14 {
        on_stack::<{ 5 << 14 }, ()>(body);
    } else {
        debug_assert!(all <= 9 << 14, "kernels declare limits that keep their scratch memory small");
        on_stack::<{ 9 << 14 }, ()>(body);
    }
}

unsafe fn all_tiles<T: Float>(
    s: Avx512,
    task: &Task<'_, '_, T>,
    ranges: Ranges<'_>,
    memory: &Memory,
    state: &Scratch,
) {
    // SAFETY: the caller vouches for AMX and for the memory.
    unsafe {
        let tiles = Tiles::new();
        pack_queries(s, task, memory, state);
        let mut largest = 0u16;
        for_each_tile::<T, KEYS>(task, ranges, |keys, start, ahead| {
            largest = largest.max(pack_keys(s, task.shape, keys, memory));
            pack_values(s, task.shape, keys, memory);
            ask_for(task.shape, ahead);
            one_tile(s, &tiles, task, start, keys.len(), memory, state);
        });
        for row in 0..task.rows.len() {
            let most = *state.bound.add(row) * bf16::from_bits(largest).to_f32();
            if most.is_nan() || most > trusted::<T>() {
                *state.total.add(row) = f32::NAN;
            }
        }
    }
}

/// Copies features `at .. at + STEP` of something in two parts; what is not there is 0.
#[inline(always)]
unsafe fn load_step<T>(parts: [*const T; 2], dims: [usize; 2], at: usize) -> __m512i {
    // SAFETY: the caller vouches for the parts; masked lanes are not touched.
    unsafe {
        if at + STEP <= dims[0] {
            return _mm512_loadu_si512(parts[0].cast::<u16>().add(at).cast());
        }
        let mut whole = [0u16; STEP];
        for (place, whole) in whole.iter_mut().enumerate() {
            let feature = at + place;
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
unsafe fn pack_queries<T: Float>(s: Avx512, task: &Task<'_, '_, T>, memory: &Memory, state: &Scratch) {
    // SAFETY: as the caller's.
    s.vectorize(|| unsafe { pack_queries_inside(s, task, memory, state) });
}

#[inline(always)]
unsafe fn pack_queries_inside<T: Float>(s: Avx512, task: &Task<'_, '_, T>, memory: &Memory, state: &Scratch) {
    let shape = task.shape;
    for row in 0..memory.rows {
        // SAFETY: the caller vouches for the memory; queries are inside their tensors.
        unsafe {
            let to = memory.q.add(row * memory.dim);
            let mut sum = s.splat(0.0);
            if row < task.rows.len() {
                let (query, head) = task.row(row);
                let parts = [task.sequence.q.at(query, head), task.sequence.q_second.at(query, head)];
                for at in (0..memory.dim).step_by(STEP) {
                    _mm512_storeu_si512(to.add(at).cast(), load_step(parts, shape.dims, at));
                    for half in [0, 16] {
                        sum = s.add(sum, s.abs(s.load_bf16(to.add(at + half).cast())));
                    }
                }
            } else {
                std::ptr::write_bytes(to, 0, memory.dim);
            }
            *state.bound.add(row) = s.sum(sum) * shape.scale * LOG2_E;
            *state.highest.add(row) = f32::NEG_INFINITY;
            *state.total.add(row) = 0.0;
            *state.correction.add(row) = 1.0;
        }
    }
    // SAFETY: as above.
    unsafe { std::ptr::write_bytes(state.o, 0, memory.rows * memory.width) };
}

/// Keys as right factors: pairs of features of sixteen keys. Gives the bits of the largest feature without its sign.
#[inline(never)]
unsafe fn pack_keys<T: Float>(s: Avx512, shape: &Shape, keys: &[Key<T>], memory: &Memory) -> u16 {
    // SAFETY: as the caller's.
    s.vectorize(|| unsafe { pack_keys_inside(s, shape, keys, memory) })
}

#[inline(always)]
unsafe fn pack_keys_inside<T: Float>(s: Avx512, shape: &Shape, keys: &[Key<T>], memory: &Memory) -> u16 {
    #[repr(align(64))]
    struct Block([u16; SIDE * STEP]);
    let mut block = Block([0; SIDE * STEP]);
    let block = block.0.as_mut_ptr();
    // SAFETY: the caller vouches for the memory; keys are inside their tensors.
    unsafe {
        let sizes = _mm512_set1_epi16(0x7fff);
        let mut largest = _mm512_setzero_si512();
        let steps = memory.dim / STEP;
        for group in 0..keys.len().next_multiple_of(STEP) / SIDE {
            for step in 0..steps {
                for place in 0..SIDE {
                    let value = match keys.get(group * SIDE + place) {
                        Some(key) => load_step([key[0], key[1]], shape.dims, step * STEP),
                        None => _mm512_setzero_si512(),
                    };
                    largest = _mm512_max_epu16(largest, _mm512_and_si512(value, sizes));
                    _mm512_storeu_si512(block.add(place * STEP).cast(), value);
                }
                let to = memory.k.add((group * steps + step) * BYTES);
                s.transpose(block.cast(), to.cast(), SIDE);
            }
        }
        let mut each = [0u16; STEP];
        _mm512_storeu_si512(each.as_mut_ptr().cast(), largest);
        each.into_iter().max().unwrap_or(0)
    }
}

/// Values as right factors: pairs of keys, feature by feature.
#[inline(never)]
unsafe fn pack_values<T: Float>(s: Avx512, shape: &Shape, keys: &[Key<T>], memory: &Memory) {
    // SAFETY: as the caller's.
    s.vectorize(|| unsafe { pack_values_inside(shape, keys, memory) });
}

#[inline(always)]
unsafe fn pack_values_inside<T: Float>(shape: &Shape, keys: &[Key<T>], memory: &Memory) {
    /// Word n of the first and of the second operand, in turns; and the same for their upper halves.
    const TURNS: [[u16; STEP]; 2] = {
        let mut turns = [[0; STEP]; 2];
        let mut place = 0;
        while place < STEP {
            turns[0][place] = (place / 2 + place % 2 * STEP) as u16;
            turns[1][place] = turns[0][place] + (STEP / 2) as u16;
            place += 1;
        }
        turns
    };
    let dims = [shape.dim_v, 0];
    // SAFETY: the caller vouches for the memory; values are inside their tensors.
    unsafe {
        let low = _mm512_loadu_si512(TURNS[0].as_ptr().cast());
        let high = _mm512_loadu_si512(TURNS[1].as_ptr().cast());
        for pair in 0..keys.len().next_multiple_of(STEP) / 2 {
            let row = pair % SIDE;
            for at in (0..memory.width).step_by(STEP) {
                let mut values = [_mm512_setzero_si512(); 2];
                for (value, key) in values.iter_mut().zip(keys.iter().skip(2 * pair)) {
                    let address = if shape.shared { key[0] } else { key[2] };
                    *value = load_step([address, std::ptr::null()], dims, at);
                }
                let [even, odd] = values;
                // Tiles of sixteen features, each with a tile for every thirty-two keys.
                let tile = at / SIDE * (KEYS / STEP) + pair / SIDE;
                let to = memory.v.add(tile * BYTES + row * 64);
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
    memory: &Memory,
    state: &Scratch,
) {
    let places = task.looks_at_places();
    let steps = memory.dim / STEP;
    for first in (0..task.rows.len()).step_by(BLOCK) {
        let last = (first + BLOCK).min(task.rows.len()) - 1;
        let mut range = 0..keys;
        if places {
            let (early, late) = (task.visible(first), task.visible(last));
            range = early.start.max(start) - start..late.end.min(start + keys).max(start) - start;
        }
        if range.is_empty() {
            continue;
        }
        let range = range.start / STEP * STEP..range.end.next_multiple_of(STEP);
        // SAFETY: the caller vouches for AMX and for the memory, which has whole blocks.
        unsafe {
            let query = memory.q.add(first * memory.dim).cast::<u8>();
            for key in range.clone().step_by(BLOCK) {
                let right = memory.k.add(key / SIDE * steps * BYTES);
                let to = memory.scores.add(first * KEYS + key);
                tiles.multiply(
                    Left { tiles: [query, query.add(SIDE * memory.dim * 2)], row: memory.dim * 2, step: ROW },
                    [right, right.add(steps * BYTES)],
                    steps,
                    Sums {
                        tiles: [[to, to.add(SIDE)], [to.add(SIDE * KEYS), to.add(SIDE * KEYS + SIDE)]],
                        row: KEYS * 4,
                        add: false,
                    },
                );
            }
            for row in first..first + BLOCK {
                if row <= last {
                    let factor = adjust(s, task, row, start, keys, range.clone(), memory);
                    softmax(s, row, factor, range.clone(), memory, state);
                } else {
                    std::ptr::write_bytes(memory.weights.add(row * KEYS), 0, KEYS);
                }
            }
            let weights = memory.weights.add(first * KEYS + range.start).cast::<u8>();
            for feature in (0..memory.width).step_by(BLOCK) {
                let tile = feature / SIDE * (KEYS / STEP) + range.start / STEP;
                let right = memory.v.add(tile * BYTES);
                let to = state.o.add(first * memory.width + feature);
                let below = to.add(SIDE * memory.width);
                tiles.multiply(
                    Left { tiles: [weights, weights.add(SIDE * KEYS * 2)], row: KEYS * 2, step: ROW },
                    [right, right.add(KEYS / STEP * BYTES)],
                    range.len() / STEP,
                    Sums {
                        tiles: [[to, to.add(SIDE)], [below, below.add(SIDE)]],
                        row: memory.width * 4,
                        add: true,
                    },
                );
            }
        }
    }
}

/// Caps, slopes, masks and edges, on the scores of one row. Gives the factor that the scores are still to be multiplied by.
#[inline(never)]
unsafe fn adjust<T: Float>(
    s: Avx512,
    task: &Task<'_, '_, T>,
    row: usize,
    start: usize,
    keys: usize,
    range: Range<usize>,
    memory: &Memory,
) -> f32 {
    let (shape, sequence) = (task.shape, task.sequence);
    let visible = if task.looks_at_places() { task.visible(row) } else { start..start + keys };
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
        if let Some(given) = masked {
            given.read(head, query, start + first..start + last, &mut mask[first..last]);
        }
        slopes.map_or(0.0, |slopes| slopes.at(head))
    };
    let distance = task.place(row).saturating_sub(start as i64);
    s.vectorize(|| {
        let place = s.splat(if distance.abs() < 1 << 23 { distance as f32 } else { f32::NAN });
        for at in range.step_by(16) {
            // SAFETY: the caller vouches for the memory.
            unsafe {
                let to = memory.scores.add(row * KEYS + at);
                let number = s.add(s.splat(at as f32), s.load(COUNTED.as_ptr()));
                let mut score = s.load(to);
                if shape.soft_cap > 0.0 {
                    let part = s.mul(score, s.splat(shape.scale / shape.soft_cap));
                    score = s.mul(tanh(s, part), s.splat(shape.soft_cap * LOG2_E));
                } else {
                    score = s.mul(score, s.splat(shape.scale * LOG2_E));
                }
                if slopes.is_some() {
                    score = s.fma(s.splat(slope * LOG2_E), s.sub(number, place), score);
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

/// Scores of a row, times a factor, become weights; what the row had before is corrected at once.
///
/// # Safety
/// The memory was measured for the task, and the processor has these instructions, as all that have AMX do.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,avx512bf16")]
unsafe fn softmax(s: Avx512, row: usize, factor: f32, range: Range<usize>, memory: &Memory, state: &Scratch) {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        let scores = memory.scores.add(row * KEYS);
        let before = *state.highest.add(row);
        let mut highest = s.splat(f32::NEG_INFINITY);
        for at in range.clone().step_by(16) {
            highest = s.max(s.load(scores.add(at)), highest);
        }
        let highest = (s.largest(highest) * factor).max(before);
        let base = highest.max(f32::MIN);
        let (mut total, factor, shift) = (s.splat(0.0), s.splat(factor), s.splat(-base));
        let weights = memory.weights.add(row * KEYS);
        for at in range.step_by(16) {
            let weight = exp2(s, s.fma(s.load(scores.add(at)), factor, shift));
            total = s.add(total, weight);
            // No weight is a denormal, so the instruction rounds as all else does.
            weights.add(at).cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(weight));
        }
        let correction = if before == highest { 1.0 } else { (before - base).exp2() };
        *state.total.add(row) = *state.total.add(row) * correction + s.sum(total);
        *state.highest.add(row) = highest;
        if correction != 1.0 {
            let o = state.o.add(row * memory.width);
            for at in (0..memory.width).step_by(16) {
                s.store(o.add(at), s.mul(s.load(o.add(at)), s.splat(correction)));
            }
        }
    }
}
