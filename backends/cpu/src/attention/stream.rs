//! A few rows over keys that are read once, straight from where they lie: nothing is packed, memory is the limit.
//!
//! Memory is read in the order in which it lies: where heads are neighbours, a few keys of all heads of the task, then the next few.
//! Every vector of a key or a value is loaded once for up to four rows of the group. What a head computes does not depend on the
//! heads beside it.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::math::tanh;
use super::problem::{Key, Shape};
use super::task::{Ranges, Scratch, Task, for_each_tile, trusted};
use crate::simd::{Float, Simd, Span, exp2, prefetch, vectors};

/// Most rows of a head that are streamed.
pub(super) const STREAMED_ROWS: usize = 8;

/// Most rows of all heads that are streamed together: their queries, sums and scores stay close to the processor.
pub(super) const ROWS_TOGETHER: usize = 32;

/// Keys of a tile; a multiple of every vector's lanes.
pub(super) const KEYS: usize = 64;

/// How far ahead of what is computed with the memory is asked, in bytes of each key of a block: far enough to hide how long it takes,
/// near enough to be still in the first-level cache when it is needed.
const AHEAD: usize = 2048;

/// 0, 1, 2, …: places of lanes.
static COUNTED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Whether so many rows of a head are streamed.
pub(super) fn takes(shape: &Shape, rows: usize) -> bool {
    rows <= STREAMED_ROWS && shape.dims[1] == 0 && !shape.shared
}

/// As `tile::attend`, for what [`takes`] says. The rows of the task's heads follow each other in the scratch memory.
pub(super) fn attend<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, ranges: Ranges<'_>, scratch: &Scratch) {
    begin(s, task, scratch);
    for_each_tile::<T, KEYS>(task, ranges, |keys, start, ahead| {
        one_tile(s, task, keys, start, ahead, scratch);
    });
    let rows = task.rows.len();
    for row in 0..rows * task.heads {
        // SAFETY: the scratch memory has a place for each row, and a vector for each head.
        unsafe {
            let largest = s.vectorize(|| s.largest(s.load(scratch.k.add(row / rows * S::LANES))));
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
    let rows = task.rows.len();
    s.vectorize(|| {
        for row in 0..rows * task.heads {
            let (query, head) = task.one(row / rows).row(row % rows);
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
        unsafe {
            std::ptr::write_bytes(scratch.o, 0, rows * task.heads * scratch.width);
            std::ptr::write_bytes(scratch.k, 0, task.heads * S::LANES);
        }
    });
}

/// Keys or values of a tile.
struct Side<'k, T> {
    keys: &'k [Key<T>],
    /// Which part of a key they are.
    part: usize,
    /// Distance of heads.
    head: isize,
}

impl<T> Side<'_, T> {
    #[inline(always)]
    fn at(&self, key: usize, head: usize) -> *const T {
        self.keys[key][self.part].wrapping_offset(head as isize * self.head)
    }
}

/// Some keys and rows of every head of a task.
struct Block<'b, 't, 'a, T> {
    task: &'b Task<'t, 'a, T>,
    /// What is computed with, and what comes after it.
    side: &'b Side<'b, T>,
    next: &'b Side<'b, T>,
    keys: Range<usize>,
    /// The first row of each head.
    row: usize,
    scratch: &'b Scratch,
}

impl<T: Float> Block<'_, '_, '_, T> {
    /// What is worth asking for while `N` keys of a head are computed with: as many that are needed soon.
    #[inline(always)]
    fn ahead<const N: usize>(&self, mut key: usize, head: usize, distance: usize) -> [*const T; N] {
        let mut soon = [std::ptr::null(); N];
        // Other rows ask for nothing: the first ones did.
        if self.row == 0 {
            let mut head = head + distance;
            while head >= self.task.heads {
                (key, head) = (key + N, head - self.task.heads);
            }
            for (n, soon) in soon.iter_mut().enumerate() {
                let key = key + n;
                if key < self.side.keys.len() {
                    *soon = self.side.at(key, head);
                } else if key - self.side.keys.len() < self.next.keys.len() {
                    *soon = self.next.at(key - self.side.keys.len(), head);
                }
            }
        }
        soon
    }
}

/// How many heads ahead memory is asked, if each has so many features.
#[inline(always)]
fn distance<T>(features: usize) -> usize {
    (AHEAD / (features * size_of::<T>()).max(1)).max(1)
}

/// Asks for the lines that begin in a vector of each.
#[inline(always)]
fn ask_for<T: Float>(soon: &[*const T], feature: usize) {
    if (feature * size_of::<T>()).is_multiple_of(64) {
        soon.iter().for_each(|at| prefetch(at.wrapping_add(feature)));
    }
}

/// Runs `$function` for all keys of a side, `N` at a time, and all rows, up to four at a time. Each size has a function of its own: a body
/// with all of them would be too large to be inlined into where the instructions are.
macro_rules! for_each_block {
    ($function:ident, $s:expr, $task:expr, $side:expr, $next:expr, $scratch:expr) => {{
        // Four keys of four rows fill half of the large register files; the small ones take two.
        let together = if S::LANES >= 16 { 4 } else { 2 };
        let (keys, rows) = ($side.keys.len(), $task.rows.len());
        let whole = keys / together * together;
        for (keys, count) in [(0..whole, together), (whole..keys, 1)] {
            for row in (0..rows).step_by(4).filter(|_| !keys.is_empty()) {
                let keys = keys.clone();
                let block = Block { task: $task, side: $side, next: $next, keys, row, scratch: $scratch };
                match (count, rows - row) {
                    (4, 1) => $function::<S, T, 4, 1>($s, &block),
                    (4, 2) => $function::<S, T, 4, 2>($s, &block),
                    (4, 3) => $function::<S, T, 4, 3>($s, &block),
                    (4, _) => $function::<S, T, 4, 4>($s, &block),
                    (2, 1) => $function::<S, T, 2, 1>($s, &block),
                    (2, 2) => $function::<S, T, 2, 2>($s, &block),
                    (2, 3) => $function::<S, T, 2, 3>($s, &block),
                    (2, _) => $function::<S, T, 2, 4>($s, &block),
                    (_, 1) => $function::<S, T, 1, 1>($s, &block),
                    (_, 2) => $function::<S, T, 1, 2>($s, &block),
                    (_, 3) => $function::<S, T, 1, 3>($s, &block),
                    (_, _) => $function::<S, T, 1, 4>($s, &block),
                }
            }
        }
    }};
}

fn one_tile<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    keys: &[Key<T>],
    start: usize,
    ahead: &[Key<T>],
    scratch: &Scratch,
) {
    let side = |keys, part, head| Side { keys, part, head };
    let (k, v) = (&task.sequence.k, &task.sequence.v);
    let (all_keys, values, next) = (side(keys, 0, k.head), side(keys, 2, v.head), side(ahead, 0, k.head));
    for_each_block!(scores, s, task, &all_keys, &values, scratch);
    let rows = task.rows.len();
    for row in 0..rows * task.heads {
        for rest in keys.len()..keys.len().next_multiple_of(S::LANES) {
            // SAFETY: the scratch memory has whole vectors of scores for each row.
            unsafe { *scratch.scores.add(row * KEYS + rest) = f32::NEG_INFINITY };
        }
        adjust(s, &task.one(row / rows), row % rows, start..start + keys.len(), row, scratch);
        softmax(s, keys.len(), row, scratch);
    }
    for_each_block!(average, s, task, &values, &next, scratch);
}

/// Scores of `R` rows of every head, `N` keys at a time, and how large the keys' features are.
#[inline(never)]
fn scores<S: Simd, T: Float, const N: usize, const R: usize>(s: S, block: &Block<'_, '_, '_, T>) {
    let (task, scratch) = (block.task, block.scratch);
    let dim = task.shape.dims[0];
    let wide = dim.next_multiple_of(S::LANES);
    s.vectorize(|| {
        let far = distance::<T>(dim);
        for key in block.keys.clone().step_by(N) {
            for head in 0..task.heads {
                let row = head * task.rows.len() + block.row;
                let soon = block.ahead::<N>(key, head, far);
                // SAFETY: the scratch memory was measured for this task, and keys are inside their tensors.
                unsafe {
                    let (q, to) = (scratch.q.add(row * wide), scratch.scores.add(row * KEYS + key));
                    let mut addresses = [std::ptr::null(); N];
                    for (n, address) in addresses.iter_mut().enumerate() {
                        *address = block.side.at(key + n, head);
                    }
                    let size = scratch.k.add(head * S::LANES);
                    let mut largest = [s.load(size); N];
                    let mut sums = [[s.splat(0.0); N]; R];
                    vectors!(S, dim, |span| {
                        ask_for(&soon, span.at());
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

/// Caps, slopes, masks and edges, on the scores of one row, which has a place of its own in the scratch memory.
#[inline(never)]
fn adjust<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    row: usize,
    range: Range<usize>,
    place: usize,
    scratch: &Scratch,
) {
    let (start, keys) = (range.start, range.len());
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
        unsafe { given.read(head, query, range, &mut mask[..keys]) };
    }
    s.vectorize(|| {
        // SAFETY: the scratch memory was measured for this task.
        unsafe {
            let scores = scratch.scores.add(place * KEYS);
            let slope = s.splat(*scratch.slope.add(place));
            let relative = |key: usize| key.saturating_sub(start).min(keys) as f32;
            let (mut first, mut last) = (s.splat(0.0), s.splat(keys as f32));
            if edge {
                (first, last) = (s.splat(relative(visible.start)), s.splat(relative(visible.end)));
            }
            let distance = task.place(row).saturating_sub(start as i64);
            let place = s.splat(if distance.abs() < 1 << 23 { distance as f32 } else { f32::NAN });
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

/// Scores of one row become weights, and what the row had before is corrected.
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
            if correction != 1.0 {
                let sums = scratch.o.add(row * scratch.width);
                for at in (0..scratch.width).step_by(S::LANES) {
                    s.store(sums.add(at), s.mul(s.load(sums.add(at)), s.splat(correction)));
                }
            }
        }
    });
}

/// Adds the weighted values to `R` rows of every head, `N` keys at a time.
#[inline(never)]
fn average<S: Simd, T: Float, const N: usize, const R: usize>(s: S, block: &Block<'_, '_, '_, T>) {
    let (task, scratch) = (block.task, block.scratch);
    let dim = task.shape.dim_v;
    s.vectorize(|| {
        let far = distance::<T>(dim);
        for key in block.keys.clone().step_by(N) {
            for head in 0..task.heads {
                let row = head * task.rows.len() + block.row;
                let soon = block.ahead::<N>(key, head, far);
                // SAFETY: the scratch memory was measured for this task, and values are inside their tensors.
                unsafe {
                    let to = scratch.o.add(row * scratch.width);
                    let from = scratch.scores.add(row * KEYS + key);
                    let (mut addresses, mut weights) = ([std::ptr::null(); N], [[s.splat(0.0); N]; R]);
                    for (n, address) in addresses.iter_mut().enumerate() {
                        *address = block.side.at(key + n, head);
                        for (m, weights) in weights.iter_mut().enumerate() {
                            weights[n] = s.splat(*from.add(m * KEYS + n));
                        }
                    }
                    vectors!(S, dim, |span| {
                        ask_for(&soon, span.at());
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
