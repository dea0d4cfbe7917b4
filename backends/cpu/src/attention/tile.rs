//! Attention of many rows (prefill): KV is packed tile by tile; QK^T by the GEMM micro-kernel, online
//! softmax, PV by the GEMM micro-kernel.
//!
//! Scores are stored transposed (one row per key), so that running maximum and sum of a row are computed lane
//! by lane, and queries are transposed once instead of keys once per tile. Exponentials are base 2: log2 e is
//! folded into the query scale. Non-finite values are left to `exact`: they show in a row's sum or
//! accumulators, which are checked at the end.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::math::tanh;
use super::problem::{Key, Shape};
use super::task::{Ranges, Scratch, TILE, Task, for_each_tile, max_accurate_bound, panel};
use crate::gemm::{MAX_MR, OperandA, OperandB, for_each_panel, for_each_rows, micro_kernel, mr};
use crate::simd::{Float, MAX_LANES, Simd, Span, exp2, prefetch_all, vectors};

/// Computes attention of the rows of a task over the keys of `ranges`; leaves the state of every row in the
/// scratch memory.
pub(super) fn attend<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, ranges: Ranges<'_>, scratch: &Scratch) {
    pack_queries(s, task, scratch);
    let mut largest = 0.0f32;
    for_each_tile::<T, TILE>(task, ranges, |keys, start, ahead| {
        largest = largest.max(pack_keys(s, task, keys, scratch));
        one_tile(s, task, start, keys.len(), ahead, scratch);
    });
    for row in 0..task.rows.len() {
        // SAFETY: the scratch memory has an element per row.
        unsafe {
            let max_score = *scratch.bound.add(row) * largest;
            if max_score.is_nan() || max_score > max_accurate_bound::<T>() {
                *scratch.sum_exp.add(row) = f32::NAN;
            }
        }
    }
}

/// Prefetches keys and values of the next tile: paged addresses defeat the hardware prefetcher.
pub(super) fn prefetch_kv<T: Float>(shape: &Shape, keys: &[Key<T>]) {
    for key in keys {
        prefetch_all(key[0], shape.dims[0] * size_of::<T>());
        prefetch_all(key[1], shape.dims[1] * size_of::<T>());
        if !shape.shared {
            prefetch_all(key[2], shape.dim_v * size_of::<T>());
        }
    }
}

/// Packs the queries, scaled and transposed by panels, and initializes the softmax state of every row.
#[inline(never)]
fn pack_queries<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, scratch: &Scratch) {
    let shape = task.shape;
    let scale = if shape.soft_cap > 0.0 { shape.scale / shape.soft_cap } else { shape.scale * LOG2_E };
    let bound = if shape.soft_cap > 0.0 { shape.soft_cap * LOG2_E } else { 1.0 };
    s.vectorize(|| {
        // SAFETY: the scratch memory is sized for this task, and queries are inside their tensors.
        unsafe {
            for group in (0..scratch.padded).step_by(S::LANES) {
                let sums = pack_vector(s, task, group, s.splat(scale), scratch);
                for (lane, sum) in sums.into_iter().enumerate().take(S::LANES) {
                    let row = group + lane;
                    let inside = row < task.rows.len();
                    let slope = task.sequence.slopes.filter(|_| inside);
                    *scratch.slope.add(row) = slope.map_or(0.0, |slopes| slopes.at(task.row(row).1) * LOG2_E);
                    *scratch.bound.add(row) = s.sum(sum) * bound;
                    *scratch.running_max.add(row) = f32::NEG_INFINITY;
                    *scratch.sum_exp.add(row) = 0.0;
                    *scratch.first.add(row) = 0.0;
                    *scratch.last.add(row) = 0.0;
                    *scratch.query_position.add(row) = 0.0;
                }
            }
            std::ptr::write_bytes(scratch.o, 0, scratch.padded * scratch.width);
        }
    });
}

/// Packs the queries of one vector of rows starting at `group`; returns the sums of absolute features per
/// row, lane by lane. Missing rows are 0.
///
/// # Safety
/// The scratch memory is sized for this task, and queries are inside their tensors.
#[inline(always)]
unsafe fn pack_vector<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    group: usize,
    scale: S::F32,
    scratch: &Scratch,
) -> [S::F32; MAX_LANES] {
    let mut block = Block([0.0; MAX_LANES * MAX_LANES]);
    let block = block.0.as_mut_ptr();
    let first = group / panel::<S>() * panel::<S>();
    let wide = panel::<S>().min(scratch.padded - first);
    let mut sums = [s.splat(0.0); MAX_LANES];
    // SAFETY: the caller guarantees scratch memory and queries; a block has LANES rows of LANES elements.
    unsafe {
        let mut to = scratch.q.add(first * task.shape.dim() + (group - first));
        for (part, &count) in task.shape.dims.iter().enumerate() {
            let queries = [&task.sequence.q, &task.sequence.q_second][part];
            let mut addresses = [std::ptr::null(); MAX_LANES];
            for (lane, address) in addresses.iter_mut().enumerate().take(S::LANES) {
                let row = group + lane;
                if row < task.rows.len() {
                    let (query, head) = task.row(row);
                    *address = queries.at(query, head);
                }
                // Queries may be pages apart, which defeats the hardware prefetcher.
                if row + S::LANES < task.rows.len() {
                    let (query, head) = task.row(row + S::LANES);
                    prefetch_all(queries.at(query, head), count * size_of::<T>());
                }
            }
            vectors!(S, count, |span| {
                for (lane, sum) in sums.iter_mut().enumerate().take(S::LANES) {
                    let mut value = s.splat(0.0);
                    if !addresses[lane].is_null() {
                        value = s.mul(T::load(s, addresses[lane], span), scale);
                    }
                    *sum = s.add(*sum, s.abs(value));
                    s.store(block.add(lane * S::LANES), value);
                }
                match span.part() {
                    None => s.transpose(block, to.add(span.at() * wide), wide),
                    Some(count) => {
                        for feature in 0..count {
                            for lane in 0..S::LANES {
                                let to = to.add((span.at() + feature) * wide + lane);
                                *to = *block.add(lane * S::LANES + feature);
                            }
                        }
                    }
                }
            });
            to = to.add(count * wide);
        }
    }
    sums
}

/// LANES x LANES elements.
#[repr(align(64))]
struct Block([f32; MAX_LANES * MAX_LANES]);

/// Packs keys and values of a tile as f32, and returns the maximum absolute feature of a key.
#[inline(never)]
fn pack_keys<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, keys: &[Key<T>], scratch: &Scratch) -> f32 {
    let shape = task.shape;
    let dim = shape.dim();
    s.vectorize(|| {
        let mut largest = s.splat(0.0);
        // SAFETY: the scratch memory is sized for this task, and keys are inside their tensors. A full vector
        // at the end of a row overlaps the next row, which is written later, or the slack.
        unsafe {
            for (n, key) in keys.iter().enumerate() {
                let mut to = scratch.k.add(n * dim);
                for (part, &count) in key.iter().zip(&shape.dims) {
                    vectors!(S, count, |span| {
                        let value = T::load(s, *part, span);
                        largest = s.max(s.abs(value), largest);
                        s.store(to.add(span.at()), value);
                    });
                    to = to.add(count);
                }
                if !shape.shared {
                    let to = scratch.v.add(n * scratch.width);
                    vectors!(S, shape.dim_v, |span| {
                        s.store(to.add(span.at()), T::load(s, key[2], span));
                    });
                }
            }
            // Micro-tiles read full tiles: pad missing keys, and vectors past the end of a shared value.
            let rest = (keys.len().next_multiple_of(mr::<S>()) - keys.len()) * dim + scratch.width;
            std::ptr::write_bytes(scratch.k.add(keys.len() * dim), 0, rest);
        }
        s.largest(largest)
    })
}

/// Processes one tile of keys for every panel of rows. Each panel prefetches a share of the next tile: all at
/// once would stall.
fn one_tile<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    start: usize,
    keys: usize,
    ahead: &[Key<T>],
    scratch: &Scratch,
) {
    let rows = task.rows.len();
    let mut shares = ahead.chunks(ahead.len().div_ceil(rows.div_ceil(panel::<S>())).max(1));
    let positional = task.needs_positions();
    let mut first = 0;
    while first < rows {
        prefetch_kv(task.shape, shares.next().unwrap_or_default());
        let wide = panel::<S>().min(scratch.padded - first);
        let last = (first + wide).min(rows) - 1;
        let mut range = 0..keys;
        let mut edge = false;
        if positional {
            let (early, late) = (task.visible(first), task.visible(last));
            range = early.start.max(start) - start..late.end.min(start + keys).max(start) - start;
            edge = late.start > start || early.end < start + keys;
        }
        if !range.is_empty() {
            let panel = Panel { first, wide, rows: last + 1 - first, keys: range };
            scores(s, task.shape.dim(), &panel, scratch);
            if positional || task.shape.soft_cap > 0.0 {
                let mask = read_mask(s, task, &panel, start, scratch);
                if edge || task.sequence.slopes.is_some() {
                    write_positions(task, &panel, start, scratch);
                }
                let slopes = task.sequence.slopes.is_some();
                apply_score_modifiers(
                    s,
                    &panel,
                    ScoreModifiers { soft_cap: task.shape.soft_cap, slopes, mask, edge },
                    scratch,
                );
            }
            softmax(s, &panel, scratch);
            accumulate_pv(s, task, &panel, start, edge, scratch);
        }
        first += wide;
    }
}

/// A panel of rows, and the keys of the current tile that any of them sees.
struct Panel {
    first: usize,
    /// Rows including the padding of the last vector.
    wide: usize,
    rows: usize,
    keys: Range<usize>,
}

/// QK^T of a panel: keys times transposed queries.
fn scores<S: Simd>(s: S, dim: usize, panel: &Panel, scratch: &Scratch) {
    // A constant key stride is encoded in the instructions and needs no registers.
    match dim {
        64 => scores_for_dim::<S, 64>(s, dim, panel, scratch),
        128 => scores_for_dim::<S, 128>(s, dim, panel, scratch),
        _ => scores_for_dim::<S, 0>(s, dim, panel, scratch),
    }
}

/// The same for head dimension `DIM`, or for any if `DIM` is 0.
#[inline(never)]
fn scores_for_dim<S: Simd, const DIM: usize>(s: S, dim: usize, panel: &Panel, scratch: &Scratch) {
    s.vectorize(|| {
        // Inside the closure: outside it would not be a constant for the vectorized code.
        let dim = if DIM > 0 { DIM } else { dim };
        for_each_panel!(panel.wide / S::LANES, |vector, NV| {
            // SAFETY: the scratch memory is sized for this; keys are padded to whole micro-tiles.
            unsafe {
                if const { S::LANES >= 16 } {
                    scores_for_vectors::<S, MAX_MR, NV>(s, dim, panel, vector, scratch);
                } else {
                    scores_for_vectors::<S, 6, NV>(s, dim, panel, vector, scratch);
                }
            }
        });
    });
}

/// The same for `NV` vectors of rows, `MR` keys at a time.
///
/// # Safety
/// The scratch memory is sized for this panel, and keys are padded to a multiple of `MR`.
#[inline(always)]
unsafe fn scores_for_vectors<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    dim: usize,
    panel: &Panel,
    vector: usize,
    scratch: &Scratch,
) {
    // SAFETY: the caller guarantees the scratch memory.
    unsafe {
        let queries = scratch.q.add(panel.first * dim);
        let mut key = panel.keys.start / MR * MR;
        while key < panel.keys.end {
            let a = OperandA { at: scratch.k.add(key * dim), row: dim, step: 1 };
            let b = OperandB { at: queries.add(vector * S::LANES), step: panel.wide };
            let sums = micro_kernel::<S, MR, NV>(s, [[s.splat(0.0); NV]; MR], a, b, dim);
            for (m, sums) in sums.iter().enumerate() {
                let to = scratch.scores.add((key + m) * panel.wide + vector * S::LANES);
                for (n, &sum) in sums.iter().enumerate() {
                    s.store(to.add(n * S::LANES), sum);
                }
            }
            key += MR;
        }
    }
}

/// How a mask applies to the scores of a panel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Masked {
    None,
    /// The same for every row: one value per key, in `mask`.
    Uniform,
    /// One value per score; `mask` has the layout of the scores.
    Each,
}

fn read_mask<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    panel: &Panel,
    start: usize,
    scratch: &Scratch,
) -> Masked {
    let Some(mask) = task.sequence.mask else { return Masked::None };
    let range = panel.keys.clone();
    let keys = range.start + start..range.end + start;
    if mask.is_uniform() {
        // SAFETY: the scratch memory has space for one value per key; the keys are inside the mask, which the
        // call borrows.
        unsafe {
            let to = std::slice::from_raw_parts_mut(scratch.mask.add(range.start), range.len());
            mask.read(0, 0, keys, to);
        }
        return Masked::Uniform;
    }
    let mut lines = [[0.0f32; TILE]; MAX_LANES];
    for vector in (0..panel.wide).step_by(S::LANES) {
        for (lane, line) in lines.iter_mut().enumerate().take(S::LANES) {
            let (query, head) = task.row(panel.first + (vector + lane).min(panel.rows - 1));
            // SAFETY: head, query and keys are inside the mask, which the call borrows.
            unsafe { mask.read(head, query, keys.clone(), &mut line[range.clone()]) };
        }
        // SAFETY: the scratch memory has the size of the scores.
        unsafe { transpose_lines(s, &lines, range.clone(), scratch.mask.add(vector), panel.wide) };
    }
    Masked::Each
}

/// Transposes: element k of line m goes to `to + k * wide + m`, for blocks of vectors around `range`.
#[inline(never)]
unsafe fn transpose_lines<S: Simd>(
    s: S,
    lines: &[[f32; TILE]; MAX_LANES],
    range: Range<usize>,
    to: *mut f32,
    wide: usize,
) {
    s.vectorize(|| {
        let mut block = Block([0.0; MAX_LANES * MAX_LANES]);
        let mut key = range.start / S::LANES * S::LANES;
        while key < range.end {
            // SAFETY: a tile has whole vectors of keys, and the caller guarantees the destination.
            unsafe {
                for (lane, line) in lines.iter().enumerate().take(S::LANES) {
                    s.store(block.0.as_mut_ptr().add(lane * S::LANES), s.load(line.as_ptr().add(key)));
                }
                s.transpose(block.0.as_ptr(), to.add(key * wide), wide);
            }
            key += S::LANES;
        }
    });
}

/// Writes the positions of the rows of a panel and their visible ranges, relative to the first key of the
/// tile.
fn write_positions<T: Float>(task: &Task<'_, '_, T>, panel: &Panel, start: usize, scratch: &Scratch) {
    for row in panel.first..panel.first + panel.wide {
        let own = row.min(panel.first + panel.rows - 1);
        let visible = task.visible(own);
        let relative = |key: usize| key.saturating_sub(start).min(TILE) as f32;
        let distance = task.query_position(own).saturating_sub(start as i64);
        // A distance that f32 cannot represent exactly forces the f64 path for the row.
        let distance = if distance.abs() < 1 << 23 { distance as f32 } else { f32::NAN };
        // SAFETY: the scratch memory has an element per row.
        unsafe {
            *scratch.first.add(row) = relative(visible.start);
            *scratch.last.add(row) = relative(visible.end);
            *scratch.query_position.add(row) = distance;
        }
    }
}

struct ScoreModifiers {
    soft_cap: f32,
    slopes: bool,
    mask: Masked,
    edge: bool,
}

/// Applies soft cap, ALiBi slopes, mask and causal/window limits to the scores of a panel.
#[inline(never)]
fn apply_score_modifiers<S: Simd>(s: S, panel: &Panel, modifiers: ScoreModifiers, scratch: &Scratch) {
    s.vectorize(|| {
        // SAFETY: the scratch memory is sized for this.
        unsafe {
            let mut vector = 0;
            while vector < panel.wide {
                let row = panel.first + vector;
                let (first, last) = (s.load(scratch.first.add(row)), s.load(scratch.last.add(row)));
                let (slope, query_position) =
                    (s.load(scratch.slope.add(row)), s.load(scratch.query_position.add(row)));
                for key in panel.keys.clone() {
                    let at = key * panel.wide + vector;
                    let number = s.splat(key as f32);
                    let mut score = s.load(scratch.scores.add(at));
                    if modifiers.soft_cap > 0.0 {
                        score = s.mul(tanh(s, score), s.splat(modifiers.soft_cap * LOG2_E));
                    }
                    if modifiers.slopes {
                        score = s.fma(slope, s.sub(number, query_position), score);
                    }
                    match modifiers.mask {
                        Masked::None => {}
                        Masked::Uniform => {
                            score = s.fma(s.splat(*scratch.mask.add(key)), s.splat(LOG2_E), score);
                        }
                        Masked::Each => {
                            score = s.fma(s.load(scratch.mask.add(at)), s.splat(LOG2_E), score);
                        }
                    }
                    if modifiers.edge {
                        let hidden = s.splat(f32::NEG_INFINITY);
                        score = s.select(s.lt(number, last), score, hidden);
                        score = s.select(s.lt(number, first), hidden, score);
                    }
                    s.store(scratch.scores.add(at), score);
                }
                vector += S::LANES;
            }
        }
    });
}

/// Online softmax step: turns scores into weights relative to the running maximum, and stores the correction
/// factor for the accumulators.
#[inline(never)]
fn softmax<S: Simd>(s: S, panel: &Panel, scratch: &Scratch) {
    s.vectorize(|| {
        let mut vector = 0;
        while vector < panel.wide {
            // SAFETY: the scratch memory is sized for this.
            unsafe {
                let row = panel.first + vector;
                let column = scratch.scores.add(vector);
                let before = s.load(scratch.running_max.add(row));
                // Four independent maxima, to break the dependency chain. A NaN does not change the maximum,
                // and shows in the sum.
                let mut running_max = [before; 4];
                let mut key = panel.keys.start;
                while key + 4 <= panel.keys.end {
                    for (n, running_max) in running_max.iter_mut().enumerate() {
                        *running_max = s.max(s.load(column.add((key + n) * panel.wide)), *running_max);
                    }
                    key += 4;
                }
                let mut running_max =
                    s.max(s.max(running_max[0], running_max[1]), s.max(running_max[2], running_max[3]));
                while key < panel.keys.end {
                    running_max = s.max(s.load(column.add(key * panel.wide)), running_max);
                    key += 1;
                }
                // Before the first visible key the maximum is -∞, and -∞ - (-∞) must be avoided.
                let base = s.max(running_max, s.splat(f32::MIN));
                let correction = exp2(s, s.sub(before, base));
                let mut sum_exp = s.mul(s.load(scratch.sum_exp.add(row)), correction);
                for key in panel.keys.clone() {
                    let at = column.add(key * panel.wide);
                    let weight = exp2(s, s.sub(s.load(at), base));
                    s.store(at, weight);
                    sum_exp = s.add(sum_exp, weight);
                }
                s.store(scratch.running_max.add(row), running_max);
                s.store(scratch.sum_exp.add(row), sum_exp);
                s.store(scratch.correction.add(row), correction);
            }
            vector += S::LANES;
        }
    });
}

/// PV: adds the weighted values of a tile to the accumulators of a panel.
fn accumulate_pv<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    panel: &Panel,
    start: usize,
    edge: bool,
    scratch: &Scratch,
) {
    let last = task.rows.len() - 1;
    let seen = |first: usize, count: usize| {
        if !edge {
            return panel.keys.clone();
        }
        let first = (panel.first + first).min(last);
        let (early, late) = (task.visible(first), task.visible((first + count - 1).min(last)));
        let (from, to) = (early.start.saturating_sub(start), late.end.saturating_sub(start));
        from.max(panel.keys.start)..to.min(panel.keys.end)
    };
    let shape = task.shape;
    let values = if shape.shared {
        OperandB { at: scratch.k, step: shape.dim() }
    } else {
        OperandB { at: scratch.v, step: scratch.width }
    };
    accumulate_pv_rows(s, panel, &seen, values, scratch);
}

fn accumulate_pv_rows<S: Simd>(
    s: S,
    panel: &Panel,
    seen: &dyn Fn(usize, usize) -> Range<usize>,
    values: OperandB,
    scratch: &Scratch,
) {
    for_each_panel!(scratch.width / S::LANES, |vector, NV| {
        for_each_rows!(S, panel.rows.next_multiple_of(2), |row, MR| {
            let keys = seen(row, MR);
            if !keys.is_empty() {
                accumulate_pv_tile::<S, MR, NV>(s, panel, row, vector, keys, values, scratch);
            }
        });
    });
}

/// Adds the weighted values to the accumulators of `MR` rows starting at `row`, in `NV` vectors of features.
/// Not inlined: one function per tile size keeps each body small enough to be inlined into `Simd::vectorize`.
#[inline(never)]
fn accumulate_pv_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    panel: &Panel,
    row: usize,
    vector: usize,
    keys: Range<usize>,
    values: OperandB,
    scratch: &Scratch,
) {
    s.vectorize(|| {
        // SAFETY: the scratch memory is sized for this; padding rows exist too.
        unsafe {
            let to = scratch.o.add((panel.first + row) * scratch.width + vector * S::LANES);
            let mut sums = [[s.splat(0.0); NV]; MR];
            for (m, sums) in sums.iter_mut().enumerate() {
                let correction = s.splat(*scratch.correction.add(panel.first + row + m));
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = s.mul(s.load(to.add(m * scratch.width + n * S::LANES)), correction);
                }
            }
            let weights = scratch.scores.add(keys.start * panel.wide + row);
            let a = OperandA { at: weights, row: 1, step: panel.wide };
            let b = OperandB { at: values.at.add(keys.start * values.step + vector * S::LANES), ..values };
            let sums = micro_kernel::<S, MR, NV>(s, sums, a, b, keys.len());
            for (m, sums) in sums.iter().enumerate() {
                for (n, &sum) in sums.iter().enumerate() {
                    s.store(to.add(m * scratch.width + n * S::LANES), sum);
                }
            }
        }
    });
}
