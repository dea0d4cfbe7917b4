//! Many rows over keys that are packed tile by tile: scores by the micro-kernel, softmax as it goes, averages by the micro-kernel.
//!
//! Scores are kept transposed, keys by rows, so that the highest score and the sum of a row are taken lane by lane, and so
//! that queries are transposed once instead of keys again and again. Powers are of 2: log2 e is part of the queries' scale.
//! What is not finite is left to `careful`: it shows in a row's sum or average, which are looked at in the end.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::math::tanh;
use super::problem::{Key, Shape};
use super::task::{Ranges, Scratch, TILE, Task, for_each_tile, panel, trusted};
use crate::gemm::{Left, MOST_ROWS, Right, for_each_panel, for_each_rows, multiply, rows};
use crate::simd::{Float, MOST_LANES, Simd, Span, exp2, prefetch_all, vectors};

/// Attends from the rows of a task to the keys of `ranges`; leaves the state of every row in the scratch memory.
pub(super) fn attend<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, ranges: Ranges<'_>, scratch: &Scratch) {
    pack_queries(s, task, scratch);
    let mut largest = 0.0f32;
    for_each_tile::<T, TILE>(task, ranges, |keys, start, ahead| {
        largest = largest.max(pack_keys(s, task, keys, scratch));
        one_tile(s, task, start, keys.len(), ahead, scratch);
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

/// Asks for keys and values that come next: they lie where processors do not guess.
pub(super) fn ask_for<T: Float>(shape: &Shape, keys: &[Key<T>]) {
    for key in keys {
        prefetch_all(key[0], shape.dims[0] * size_of::<T>());
        prefetch_all(key[1], shape.dims[1] * size_of::<T>());
        if !shape.shared {
            prefetch_all(key[2], shape.dim_v * size_of::<T>());
        }
    }
}

/// Queries, scaled, transposed by panels; and the state of every row before its first key.
#[inline(never)]
fn pack_queries<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, scratch: &Scratch) {
    let shape = task.shape;
    let scale = if shape.soft_cap > 0.0 { shape.scale / shape.soft_cap } else { shape.scale * LOG2_E };
    let bound = if shape.soft_cap > 0.0 { shape.soft_cap * LOG2_E } else { 1.0 };
    s.vectorize(|| {
        // SAFETY: the scratch memory was measured for this task, and queries are inside their tensors.
        unsafe {
            for group in (0..scratch.padded).step_by(S::LANES) {
                let sums = pack_vector(s, task, group, s.splat(scale), scratch);
                for (lane, sum) in sums.into_iter().enumerate().take(S::LANES) {
                    let row = group + lane;
                    let inside = row < task.rows.len();
                    let slope = task.sequence.slopes.filter(|_| inside);
                    *scratch.slope.add(row) = slope.map_or(0.0, |slopes| slopes.at(task.row(row).1) * LOG2_E);
                    *scratch.bound.add(row) = s.sum(sum) * bound;
                    *scratch.highest.add(row) = f32::NEG_INFINITY;
                    *scratch.total.add(row) = 0.0;
                    *scratch.first.add(row) = 0.0;
                    *scratch.last.add(row) = 0.0;
                    *scratch.place.add(row) = 0.0;
                }
            }
            std::ptr::write_bytes(scratch.o, 0, scratch.padded * scratch.width);
        }
    });
}

/// Queries of one vector of rows from `group` on; returns what the sizes of each row's features add up to, lane by lane. Rows that are
/// not there are 0.
///
/// # Safety
/// The scratch memory was measured for this task, and queries are inside their tensors.
#[inline(always)]
unsafe fn pack_vector<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    group: usize,
    scale: S::F32,
    scratch: &Scratch,
) -> [S::F32; MOST_LANES] {
    let mut block = Block([0.0; MOST_LANES * MOST_LANES]);
    let block = block.0.as_mut_ptr();
    let first = group / panel::<S>() * panel::<S>();
    let wide = panel::<S>().min(scratch.padded - first);
    let mut sums = [s.splat(0.0); MOST_LANES];
    // SAFETY: the caller vouches for the scratch memory and the queries; a block has LANES rows of LANES numbers.
    unsafe {
        let mut to = scratch.q.add(first * task.shape.dim() + (group - first));
        for (part, &count) in task.shape.dims.iter().enumerate() {
            let queries = [&task.sequence.q, &task.sequence.q_second][part];
            let mut addresses = [std::ptr::null(); MOST_LANES];
            for (lane, address) in addresses.iter_mut().enumerate().take(S::LANES) {
                let row = group + lane;
                if row < task.rows.len() {
                    let (query, head) = task.row(row);
                    *address = queries.at(query, head);
                }
                // Queries may be pages apart, where processors do not guess what comes next.
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

/// As many vectors as a vector has lanes.
#[repr(align(64))]
struct Block([f32; MOST_LANES * MOST_LANES]);

/// Keys and values of a tile as f32, and the largest size of a key's feature.
#[inline(never)]
fn pack_keys<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, keys: &[Key<T>], scratch: &Scratch) -> f32 {
    let shape = task.shape;
    let dim = shape.dim();
    s.vectorize(|| {
        let mut largest = s.splat(0.0);
        // SAFETY: the scratch memory was measured for this task, and keys are inside their tensors. A whole vector at the end
        // of a row reaches into the next one, which is written later, or into the slack.
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
            // Micro-tiles read whole ones: rows of keys that are not there, and vectors over the end of a shared value.
            let rest = (keys.len().next_multiple_of(rows::<S>()) - keys.len()) * dim + scratch.width;
            std::ptr::write_bytes(scratch.k.add(keys.len() * dim), 0, rest);
        }
        s.largest(largest)
    })
}

/// One tile of keys for every panel of rows. Each panel asks for its share of the keys that come next: all at once would have to wait.
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
    let places = task.looks_at_places();
    let mut first = 0;
    while first < rows {
        ask_for(task.shape, shares.next().unwrap_or_default());
        let wide = panel::<S>().min(scratch.padded - first);
        let last = (first + wide).min(rows) - 1;
        let mut range = 0..keys;
        let mut edge = false;
        if places {
            let (early, late) = (task.visible(first), task.visible(last));
            range = early.start.max(start) - start..late.end.min(start + keys).max(start) - start;
            edge = late.start > start || early.end < start + keys;
        }
        if !range.is_empty() {
            let panel = Panel { first, wide, rows: last + 1 - first, keys: range };
            scores(s, task.shape.dim(), &panel, scratch);
            if places || task.shape.soft_cap > 0.0 {
                let mask = read_mask(s, task, &panel, start, scratch);
                if edge || task.sequence.slopes.is_some() {
                    read_places(task, &panel, start, scratch);
                }
                let slopes = task.sequence.slopes.is_some();
                adjust(s, &panel, Adjustment { soft_cap: task.shape.soft_cap, slopes, mask, edge }, scratch);
            }
            softmax(s, &panel, scratch);
            average(s, task, &panel, start, edge, scratch);
        }
        first += wide;
    }
}

/// A panel of rows and the keys of the present tile that any of them may see.
struct Panel {
    first: usize,
    /// Rows with those that fill the last vector.
    wide: usize,
    rows: usize,
    keys: Range<usize>,
}

/// Scores of a panel: keys times transposed queries.
fn scores<S: Simd>(s: S, dim: usize, panel: &Panel, scratch: &Scratch) {
    // Where the distance of the keys is a constant, it is part of the instructions and needs no registers.
    match dim {
        64 => scores_of::<S, 64>(s, dim, panel, scratch),
        128 => scores_of::<S, 128>(s, dim, panel, scratch),
        _ => scores_of::<S, 0>(s, dim, panel, scratch),
    }
}

/// The same for keys of `DIM` features, or of any number where that is 0.
#[inline(never)]
fn scores_of<S: Simd, const DIM: usize>(s: S, dim: usize, panel: &Panel, scratch: &Scratch) {
    s.vectorize(|| {
        // In here, or it would be a variable to what is compiled with the instructions.
        let dim = if DIM > 0 { DIM } else { dim };
        for_each_panel!(panel.wide / S::LANES, |vector, NV| {
            // SAFETY: the scratch memory was measured for this; rows of keys are filled up to whole micro-tiles.
            unsafe {
                if S::LANES >= 16 {
                    scores_of_vectors::<S, MOST_ROWS, NV>(s, dim, panel, vector, scratch);
                } else {
                    scores_of_vectors::<S, 6, NV>(s, dim, panel, vector, scratch);
                }
            }
        });
    });
}

/// The same for `NV` vectors of rows, `MR` keys at a time.
///
/// # Safety
/// The scratch memory was measured for this panel, and has keys up to a multiple of `MR`.
#[inline(always)]
unsafe fn scores_of_vectors<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    dim: usize,
    panel: &Panel,
    vector: usize,
    scratch: &Scratch,
) {
    // SAFETY: the caller vouches for the scratch memory.
    unsafe {
        let queries = scratch.q.add(panel.first * dim);
        let mut key = panel.keys.start / MR * MR;
        while key < panel.keys.end {
            let a = Left { at: scratch.k.add(key * dim), row: dim, step: 1 };
            let b = Right { at: queries.add(vector * S::LANES), step: panel.wide };
            let sums = multiply::<S, MR, NV>(s, [[s.splat(0.0); NV]; MR], a, b, dim);
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

/// What a mask does to the scores of a panel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Masked {
    Not,
    /// The same for every row: one number a key, in `mask`.
    Uniform,
    /// `mask` is laid out as the scores.
    Each,
}

fn read_mask<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    panel: &Panel,
    start: usize,
    scratch: &Scratch,
) -> Masked {
    let Some(mask) = task.sequence.mask else { return Masked::Not };
    let range = panel.keys.clone();
    let keys = range.start + start..range.end + start;
    if mask.is_uniform() {
        // SAFETY: the scratch memory has room for a number a key; the keys are inside the mask, which the call borrows.
        unsafe {
            let to = std::slice::from_raw_parts_mut(scratch.mask.add(range.start), range.len());
            mask.read(0, 0, keys, to);
        }
        return Masked::Uniform;
    }
    let mut lines = [[0.0f32; TILE]; MOST_LANES];
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

/// Number k of line m goes to `to + k * wide + m`, for blocks of vectors around `range`.
#[inline(never)]
unsafe fn transpose_lines<S: Simd>(
    s: S,
    lines: &[[f32; TILE]; MOST_LANES],
    range: Range<usize>,
    to: *mut f32,
    wide: usize,
) {
    s.vectorize(|| {
        let mut block = Block([0.0; MOST_LANES * MOST_LANES]);
        let mut key = range.start / S::LANES * S::LANES;
        while key < range.end {
            // SAFETY: a tile has whole vectors of keys, and the caller vouches for the place.
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

/// Where the rows of a panel stand, and what they see, counted from the first key of the tile.
fn read_places<T: Float>(task: &Task<'_, '_, T>, panel: &Panel, start: usize, scratch: &Scratch) {
    for row in panel.first..panel.first + panel.wide {
        let own = row.min(panel.first + panel.rows - 1);
        let visible = task.visible(own);
        let relative = |key: usize| key.saturating_sub(start).min(TILE) as f32;
        let distance = task.place(own).saturating_sub(start as i64);
        // A distance that f32 cannot hold exactly makes the row suspicious.
        let distance = if distance.abs() < 1 << 23 { distance as f32 } else { f32::NAN };
        // SAFETY: the scratch memory has a place for each row.
        unsafe {
            *scratch.first.add(row) = relative(visible.start);
            *scratch.last.add(row) = relative(visible.end);
            *scratch.place.add(row) = distance;
        }
    }
}

struct Adjustment {
    soft_cap: f32,
    slopes: bool,
    mask: Masked,
    edge: bool,
}

/// Caps, slopes, masks and edges, on the scores of a panel.
#[inline(never)]
fn adjust<S: Simd>(s: S, panel: &Panel, how: Adjustment, scratch: &Scratch) {
    s.vectorize(|| {
        // SAFETY: the scratch memory was measured for this.
        unsafe {
            let mut vector = 0;
            while vector < panel.wide {
                let row = panel.first + vector;
                let (first, last) = (s.load(scratch.first.add(row)), s.load(scratch.last.add(row)));
                let (slope, place) = (s.load(scratch.slope.add(row)), s.load(scratch.place.add(row)));
                for key in panel.keys.clone() {
                    let at = key * panel.wide + vector;
                    let number = s.splat(key as f32);
                    let mut score = s.load(scratch.scores.add(at));
                    if how.soft_cap > 0.0 {
                        score = s.mul(tanh(s, score), s.splat(how.soft_cap * LOG2_E));
                    }
                    if how.slopes {
                        score = s.fma(slope, s.sub(number, place), score);
                    }
                    match how.mask {
                        Masked::Not => {}
                        Masked::Uniform => {
                            score = s.fma(s.splat(*scratch.mask.add(key)), s.splat(LOG2_E), score);
                        }
                        Masked::Each => {
                            score = s.fma(s.load(scratch.mask.add(at)), s.splat(LOG2_E), score);
                        }
                    }
                    if how.edge {
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

/// Scores become weights relative to the highest score so far; what the rows had before is to be corrected.
#[inline(never)]
fn softmax<S: Simd>(s: S, panel: &Panel, scratch: &Scratch) {
    s.vectorize(|| {
        let mut vector = 0;
        while vector < panel.wide {
            // SAFETY: the scratch memory was measured for this.
            unsafe {
                let row = panel.first + vector;
                let column = scratch.scores.add(vector);
                let before = s.load(scratch.highest.add(row));
                // Four at a time, so that none waits for the one before. A NaN leaves the highest score alone, and shows in the sum.
                let mut highest = [before; 4];
                let mut key = panel.keys.start;
                while key + 4 <= panel.keys.end {
                    for (n, highest) in highest.iter_mut().enumerate() {
                        *highest = s.max(s.load(column.add((key + n) * panel.wide)), *highest);
                    }
                    key += 4;
                }
                let mut highest = s.max(s.max(highest[0], highest[1]), s.max(highest[2], highest[3]));
                while key < panel.keys.end {
                    highest = s.max(s.load(column.add(key * panel.wide)), highest);
                    key += 1;
                }
                // Without any key yet, whatever is subtracted from -∞ must not be -∞.
                let base = s.max(highest, s.splat(f32::MIN));
                let correction = exp2(s, s.sub(before, base));
                let mut total = s.mul(s.load(scratch.total.add(row)), correction);
                for key in panel.keys.clone() {
                    let at = column.add(key * panel.wide);
                    let weight = exp2(s, s.sub(s.load(at), base));
                    s.store(at, weight);
                    total = s.add(total, weight);
                }
                s.store(scratch.highest.add(row), highest);
                s.store(scratch.total.add(row), total);
                s.store(scratch.correction.add(row), correction);
            }
            vector += S::LANES;
        }
    });
}

/// Adds the weighted values of a tile to the rows of a panel.
fn average<S: Simd, T: Float>(
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
        Right { at: scratch.k, step: shape.dim() }
    } else {
        Right { at: scratch.v, step: scratch.width }
    };
    average_rows(s, panel, &seen, values, scratch);
}

fn average_rows<S: Simd>(
    s: S,
    panel: &Panel,
    seen: &dyn Fn(usize, usize) -> Range<usize>,
    values: Right,
    scratch: &Scratch,
) {
    for_each_panel!(scratch.width / S::LANES, |vector, NV| {
        for_each_rows!(S, panel.rows.next_multiple_of(2), |row, MR| {
            let keys = seen(row, MR);
            if !keys.is_empty() {
                average_tile::<S, MR, NV>(s, panel, row, vector, keys, values, scratch);
            }
        });
    });
}

/// Adds the weighted values to `MR` rows from `row` on, in `NV` vectors of features. A function of its own for each size: a
/// body with all of them would be too large to be inlined into where the instructions are.
#[inline(never)]
fn average_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    panel: &Panel,
    row: usize,
    vector: usize,
    keys: Range<usize>,
    values: Right,
    scratch: &Scratch,
) {
    s.vectorize(|| {
        // SAFETY: the scratch memory was measured for this; rows that fill up are there too.
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
            let a = Left { at: weights, row: 1, step: panel.wide };
            let b = Right { at: values.at.add(keys.start * values.step + vector * S::LANES), ..values };
            let sums = multiply::<S, MR, NV>(s, sums, a, b, keys.len());
            for (m, sums) in sums.iter().enumerate() {
                for (n, &sum) in sums.iter().enumerate() {
                    s.store(to.add(m * scratch.width + n * S::LANES), sum);
                }
            }
        }
    });
}
