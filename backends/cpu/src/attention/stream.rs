//! Attention of few rows (decode): keys and values are read once, unpacked. Bound by memory bandwidth.
//!
//! Memory is read in address order: if heads are adjacent, a few keys of all heads of the task, then the next
//! few. Every vector of a key or value is loaded once for up to four rows of the GQA group. The result of a
//! head does not depend on the other heads of the task.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::math::tanh;
use super::problem::{Key, Shape};
use super::task::{Ranges, Scratch, Task, for_each_tile, max_accurate_bound};
use crate::simd::{Float, Simd, Span, exp2, prefetch, vectors};

/// Maximum rows of a head that take this path.
pub(super) const STREAMED_ROWS: usize = 8;

/// Maximum rows of all heads streamed together: their queries, accumulators and scores stay in L1.
pub(super) const ROWS_TOGETHER: usize = 32;

/// Keys of a KV tile; a multiple of every vector length.
pub(super) const KEYS: usize = 64;

/// Prefetch distance in bytes of each key of a block: far enough to hide the memory latency, near enough to
/// be still in L1 when needed.
const AHEAD: usize = 2048;

/// Lane indices.
static LANE_INDICES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Whether a head with this many rows takes this path.
pub(super) fn supports(shape: &Shape, rows: usize) -> bool {
    rows <= STREAMED_ROWS && shape.dims[1] == 0 && !shape.shared
}

/// Like `tile::attend`, for problems that [`supports`] accepts. The rows of the task's heads are consecutive
/// in the scratch memory.
pub(super) fn attend<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, ranges: Ranges<'_>, scratch: &Scratch) {
    initialize(s, task, scratch);
    for_each_tile::<T, KEYS>(task, ranges, |keys, start, ahead| {
        one_tile(s, task, keys, start, ahead, scratch);
    });
    let rows = task.rows.len();
    for row in 0..rows * task.heads {
        // SAFETY: the scratch memory has an element per row, and a vector per head.
        unsafe {
            let largest = s.vectorize(|| s.largest(s.load(scratch.k.add(row / rows * S::LANES))));
            let max_score = *scratch.bound.add(row) * largest;
            if max_score.is_nan() || max_score > max_accurate_bound::<T>() {
                *scratch.sum_exp.add(row) = f32::NAN;
            }
        }
    }
}

fn initialize<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, scratch: &Scratch) {
    let shape = task.shape;
    let wide = shape.dims[0].next_multiple_of(S::LANES);
    let scale = if shape.soft_cap > 0.0 { shape.scale / shape.soft_cap } else { shape.scale * LOG2_E };
    let bound = if shape.soft_cap > 0.0 { shape.soft_cap * LOG2_E } else { 1.0 };
    let rows = task.rows.len();
    s.vectorize(|| {
        for row in 0..rows * task.heads {
            let (query, head) = task.one(row / rows).row(row % rows);
            // SAFETY: the scratch memory is sized for this task, and queries are inside their tensors.
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
                *scratch.running_max.add(row) = f32::NEG_INFINITY;
                *scratch.sum_exp.add(row) = 0.0;
            }
        }
        // SAFETY: as above.
        unsafe {
            std::ptr::write_bytes(scratch.o, 0, rows * task.heads * scratch.width);
            std::ptr::write_bytes(scratch.k, 0, task.heads * S::LANES);
        }
    });
}

/// Keys or values of a KV tile.
struct KvTile<'k, T> {
    keys: &'k [Key<T>],
    /// Index into [`Key`].
    part: usize,
    /// Stride between heads.
    head: isize,
}

impl<T> KvTile<'_, T> {
    #[inline(always)]
    fn at(&self, key: usize, head: usize) -> *const T {
        self.keys[key][self.part].wrapping_offset(head as isize * self.head)
    }
}

/// Some keys and rows of every head of a task.
struct Block<'b, 't, 'a, T> {
    task: &'b Task<'t, 'a, T>,
    /// The tile that is computed, and the one that follows (to prefetch).
    tile: &'b KvTile<'b, T>,
    next: &'b KvTile<'b, T>,
    keys: Range<usize>,
    /// First row of each head.
    row: usize,
    scratch: &'b Scratch,
}

impl<T: Float> Block<'_, '_, '_, T> {
    /// Prefetch targets while `N` keys of a head are computed: the `N` keys that follow at the prefetch
    /// distance.
    #[inline(always)]
    fn ahead<const N: usize>(&self, mut key: usize, head: usize, prefetch_distance: usize) -> [*const T; N] {
        let mut upcoming = [std::ptr::null(); N];
        // Only the first row group prefetches; the others use the same keys.
        if self.row == 0 {
            let mut head = head + prefetch_distance;
            while head >= self.task.heads {
                (key, head) = (key + N, head - self.task.heads);
            }
            for (n, upcoming) in upcoming.iter_mut().enumerate() {
                let key = key + n;
                if key < self.tile.keys.len() {
                    *upcoming = self.tile.at(key, head);
                } else if key - self.tile.keys.len() < self.next.keys.len() {
                    *upcoming = self.next.at(key - self.tile.keys.len(), head);
                }
            }
        }
        upcoming
    }
}

/// Prefetch distance in heads, for heads of this dimension.
#[inline(always)]
fn prefetch_distance<T>(features: usize) -> usize {
    (AHEAD / (features * size_of::<T>()).max(1)).max(1)
}

/// Prefetches the cache lines that start in the vector at `feature` of each target.
#[inline(always)]
fn prefetch_kv<T: Float>(upcoming: &[*const T], feature: usize) {
    if (feature * size_of::<T>()).is_multiple_of(64) {
        upcoming.iter().for_each(|at| prefetch(at.wrapping_add(feature)));
    }
}

/// Runs `$function` for all keys of a tile, `N` at a time, and all rows, up to four at a time. Each size is a
/// separate function, to keep the bodies small enough to be inlined into `Simd::vectorize`, where the target
/// features are enabled.
macro_rules! for_each_block {
    ($function:ident, $s:expr, $task:expr, $tile:expr, $next:expr, $scratch:expr) => {{
        let together = const { max_keys::<S>() };
        let (keys, rows) = ($tile.keys.len(), $task.rows.len());
        let whole = keys / together * together;
        for (keys, count) in [(0..whole, together), (whole..keys, 1)] {
            for row in (0..rows).step_by(4).filter(|_| !keys.is_empty()) {
                let keys = keys.clone();
                let block = Block { task: $task, tile: $tile, next: $next, keys, row, scratch: $scratch };
                match count {
                    1 => for_rows!($function, 1, rows - row, $s, &block),
                    _ if const { max_keys::<S>() == 4 } => for_rows!($function, 4, rows - row, $s, &block),
                    _ => for_rows!($function, 2, rows - row, $s, &block),
                }
            }
        }
    }};
}

/// Runs `$function` for `$keys` keys and up to four of the remaining rows.
macro_rules! for_rows {
    ($function:ident, $keys:literal, $rows:expr, $s:expr, $block:expr) => {
        match $rows {
            1 => $function::<S, T, $keys, 1>($s, $block),
            2 => $function::<S, T, $keys, 2>($s, $block),
            3 => $function::<S, T, $keys, 3>($s, $block),
            _ => $function::<S, T, $keys, 4>($s, $block),
        }
    };
}

/// Keys at a time. Four keys by four rows fill half of the AVX-512 register file; smaller register files take two keys. A constant, so
/// that no code is created for sizes that an instruction set does not use.
const fn max_keys<S: Simd>() -> usize {
    if S::LANES >= 16 { 4 } else { 2 }
}

fn one_tile<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    keys: &[Key<T>],
    start: usize,
    ahead: &[Key<T>],
    scratch: &Scratch,
) {
    let kv_tile = |keys, part, head| KvTile { keys, part, head };
    let (k, v) = (&task.sequence.k, &task.sequence.v);
    let (all_keys, values, next) =
        (kv_tile(keys, 0, k.head), kv_tile(keys, 2, v.head), kv_tile(ahead, 0, k.head));
    for_each_block!(scores, s, task, &all_keys, &values, scratch);
    let rows = task.rows.len();
    for row in 0..rows * task.heads {
        for rest in keys.len()..keys.len().next_multiple_of(S::LANES) {
            // SAFETY: the scratch memory has whole vectors of scores for each row.
            unsafe { *scratch.scores.add(row * KEYS + rest) = f32::NEG_INFINITY };
        }
        apply_score_modifiers(s, &task.one(row / rows), row % rows, start..start + keys.len(), row, scratch);
        softmax(s, keys.len(), row, scratch);
    }
    for_each_block!(accumulate_pv, s, task, &values, &next, scratch);
}

/// QK^T: scores of `R` rows of every head, `N` keys at a time, and the maximum absolute feature of the keys.
#[inline(never)]
fn scores<S: Simd, T: Float, const N: usize, const R: usize>(s: S, block: &Block<'_, '_, '_, T>) {
    let (task, scratch) = (block.task, block.scratch);
    let dim = task.shape.dims[0];
    let wide = dim.next_multiple_of(S::LANES);
    s.vectorize(|| {
        let prefetch_heads = prefetch_distance::<T>(dim);
        for key in block.keys.clone().step_by(N) {
            for head in 0..task.heads {
                let row = head * task.rows.len() + block.row;
                let upcoming = block.ahead::<N>(key, head, prefetch_heads);
                // SAFETY: the scratch memory is sized for this task, and keys are inside their tensors.
                unsafe {
                    let (q, to) = (scratch.q.add(row * wide), scratch.scores.add(row * KEYS + key));
                    let mut addresses = [std::ptr::null(); N];
                    for (n, address) in addresses.iter_mut().enumerate() {
                        *address = block.tile.at(key + n, head);
                    }
                    let size = scratch.k.add(head * S::LANES);
                    let mut largest = [s.load(size); N];
                    let mut sums = [[s.splat(0.0); N]; R];
                    vectors!(S, dim, |span| {
                        prefetch_kv(&upcoming, span.at());
                        let mut values = [s.splat(0.0); N];
                        for (n, value) in values.iter_mut().enumerate() {
                            *value = T::load(s, addresses[n], span);
                            largest[n] = s.max(s.abs(*value), largest[n]);
                        }
                        for (m, sums) in sums.iter_mut().enumerate() {
                            let query = s.load(q.add(m * wide + span.at()));
                            for (sum, &value) in sums.iter_mut().zip(&values) {
                                *sum = s.fma(query, value, *sum);
                            }
                        }
                    });
                    for (m, sums) in sums.iter().enumerate() {
                        for (n, &sum) in sums.iter().enumerate() {
                            *to.add(m * KEYS + n) = s.sum(sum);
                        }
                    }
                    let mut all = largest[0];
                    for &other in &largest[1..] {
                        all = s.max(all, other);
                    }
                    s.store(size, all);
                }
            }
        }
    });
}

/// Applies soft cap, ALiBi slopes, mask and causal/window limits to the scores of one row, stored in row
/// `scratch_row` of the scratch memory.
#[inline(never)]
fn apply_score_modifiers<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    row: usize,
    range: Range<usize>,
    scratch_row: usize,
    scratch: &Scratch,
) {
    let (start, keys) = (range.start, range.len());
    let soft_cap = task.shape.soft_cap;
    let visible = task.visible(row);
    let edge = task.needs_positions() && (visible.start > start || visible.end < start + keys);
    let (slopes, masked) = (task.sequence.slopes.is_some(), task.sequence.mask);
    if !edge && !slopes && masked.is_none() && soft_cap <= 0.0 {
        return;
    }
    let mut mask = [0.0f32; KEYS];
    if let Some(view) = masked {
        let (query, head) = task.row(row);
        // SAFETY: the mask is borrowed by the call and covers rows and keys.
        unsafe { view.read(head, query, range, &mut mask[..keys]) };
    }
    s.vectorize(|| {
        // SAFETY: the scratch memory is sized for this task.
        unsafe {
            let scores = scratch.scores.add(scratch_row * KEYS);
            let slope = s.splat(*scratch.slope.add(scratch_row));
            let relative = |key: usize| key.saturating_sub(start).min(keys) as f32;
            let (mut first, mut last) = (s.splat(0.0), s.splat(keys as f32));
            if edge {
                (first, last) = (s.splat(relative(visible.start)), s.splat(relative(visible.end)));
            }
            let distance = task.query_position(row).saturating_sub(start as i64);
            let query_position = s.splat(if distance.abs() < 1 << 23 { distance as f32 } else { f32::NAN });
            let mut at = 0;
            while at < keys {
                let number = s.add(s.splat(at as f32), s.load(LANE_INDICES.as_ptr()));
                let mut score = s.load(scores.add(at));
                if soft_cap > 0.0 {
                    score = s.mul(tanh(s, score), s.splat(soft_cap * LOG2_E));
                }
                if slopes {
                    score = s.fma(slope, s.sub(number, query_position), score);
                }
                if masked.is_some() {
                    score = s.fma(s.load(mask.as_ptr().add(at)), s.splat(LOG2_E), score);
                }
                // The padding of the last vector stays masked out.
                let hidden = s.splat(f32::NEG_INFINITY);
                score = s.select(s.lt(number, last), score, hidden);
                score = s.select(s.lt(number, first), hidden, score);
                s.store(scores.add(at), score);
                at += S::LANES;
            }
        }
    });
}

/// Online softmax step: turns the scores of one row into weights, and rescales its accumulators.
#[inline(never)]
fn softmax<S: Simd>(s: S, keys: usize, row: usize, scratch: &Scratch) {
    s.vectorize(|| {
        // SAFETY: the scratch memory is sized for this task.
        unsafe {
            let scores = scratch.scores.add(row * KEYS);
            let before = *scratch.running_max.add(row);
            let mut running_max = s.splat(before);
            let mut at = 0;
            while at < keys {
                running_max = s.max(s.load(scores.add(at)), running_max);
                at += S::LANES;
            }
            let running_max = s.largest(running_max);
            let base = running_max.max(f32::MIN);
            let mut sum_exp = s.splat(0.0);
            let mut at = 0;
            while at < keys {
                let weight = exp2(s, s.sub(s.load(scores.add(at)), s.splat(base)));
                s.store(scores.add(at), weight);
                sum_exp = s.add(sum_exp, weight);
                at += S::LANES;
            }
            let correction = match before {
                f32::NEG_INFINITY if running_max > before => 0.0,
                _ if before == running_max => 1.0,
                _ => (before - base).exp2(),
            };
            *scratch.sum_exp.add(row) = *scratch.sum_exp.add(row) * correction + s.sum(sum_exp);
            *scratch.running_max.add(row) = running_max;
            if correction != 1.0 {
                let sums = scratch.o.add(row * scratch.width);
                for at in (0..scratch.width).step_by(S::LANES) {
                    s.store(sums.add(at), s.mul(s.load(sums.add(at)), s.splat(correction)));
                }
            }
        }
    });
}

/// PV: adds the weighted values to `R` rows of every head, `N` keys at a time.
#[inline(never)]
fn accumulate_pv<S: Simd, T: Float, const N: usize, const R: usize>(s: S, block: &Block<'_, '_, '_, T>) {
    let (task, scratch) = (block.task, block.scratch);
    let dim = task.shape.dim_v;
    s.vectorize(|| {
        let prefetch_heads = prefetch_distance::<T>(dim);
        for key in block.keys.clone().step_by(N) {
            for head in 0..task.heads {
                let row = head * task.rows.len() + block.row;
                let upcoming = block.ahead::<N>(key, head, prefetch_heads);
                // SAFETY: the scratch memory is sized for this task, and values are inside their tensors.
                unsafe {
                    let to = scratch.o.add(row * scratch.width);
                    let from = scratch.scores.add(row * KEYS + key);
                    let (mut addresses, mut weights) = ([std::ptr::null(); N], [[s.splat(0.0); N]; R]);
                    for (n, address) in addresses.iter_mut().enumerate() {
                        *address = block.tile.at(key + n, head);
                        for (m, weights) in weights.iter_mut().enumerate() {
                            weights[n] = s.splat(*from.add(m * KEYS + n));
                        }
                    }
                    vectors!(S, dim, |span| {
                        prefetch_kv(&upcoming, span.at());
                        let mut values = [s.splat(0.0); N];
                        for (value, &address) in values.iter_mut().zip(&addresses) {
                            *value = T::load(s, address, span);
                        }
                        for (m, weights) in weights.iter().enumerate() {
                            let to = to.add(m * scratch.width + span.at());
                            let mut sum = s.load(to);
                            for (&weight, &value) in weights.iter().zip(&values) {
                                sum = s.fma(weight, value, sum);
                            }
                            s.store(to, sum);
                        }
                    });
                }
            }
        }
    });
}
