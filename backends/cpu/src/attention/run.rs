//! Cuts a call into tasks, lets the pool run them, and joins what was split over keys.
//!
//! How a call is cut depends on its sizes alone, so results are the same bits for any number of threads.

use std::ops::Range;

use super::careful;
use super::problem::{Sequence, Shape};
use super::task::{MOST_ROWS, Ranges, Scratch, Task, trusted_highest, with_scratch};
use super::{stream, tile};
use crate::pool;
use crate::simd::{Float, Simd, vectors};

/// Keys of one part where a call is split over keys: few, so that the heads of a layout in which they are neighbours are read together.
pub(crate) const CHUNK: usize = 256;

/// The same where there is one key head of many rows, whose states are large.
pub(crate) const LONG_CHUNK: usize = 1024;

/// Calls with fewer products than this stay on the caller's thread.
const WORTH_SHARING: usize = 1 << 19;

/// All sequences of a call.
pub(crate) struct Problem<'p, 'a, T> {
    pub shape: Shape,
    pub sequences: usize,
    /// Sequence `n`; cheap, as every task asks for its own.
    pub sequence: &'p (dyn Fn(usize) -> Sequence<'a, T> + Sync),
}

/// How a call is split over keys, if it is.
pub(crate) struct Split<'w> {
    /// Keys of a part.
    pub chunk: usize,
    /// Room for the parts of every row: `(dim_v + 2)` numbers each.
    pub workspace: &'w mut [u8],
    /// The number of the first part of a sequence, in parts of one row; another one for each sequence, far enough apart.
    pub first_part: &'w (dyn Fn(usize) -> usize + Sync),
}

/// Pointers that tasks share; each writes what no other touches.
#[derive(Clone, Copy)]
struct Shared(*mut f32);
// SAFETY: tasks write disjoint parts; see `Shared`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

struct AllSync<'x, P>(&'x P);
// SAFETY: a problem only holds addresses of tensors that the call borrows: inputs are read, and each row of an output is written
// by one task.
unsafe impl<P> Sync for AllSync<'_, P> {}
impl<P> AllSync<'_, P> {
    fn get(&self) -> &P {
        self.0
    }
}

/// Attends.
pub(crate) fn run<S: Attend, T: Float>(s: S, problem: &Problem<'_, '_, T>, split: Option<Split<'_>>) {
    let shape = &problem.shape;
    if shape.group == 0 || shape.kv_heads == 0 || problem.sequences == 0 {
        return;
    }
    let length = split.as_ref().map_or(usize::MAX, |split| split.chunk);
    // Keys are packed once for so many rows, whose scratch memory grows with their features; tiles of bf16 keep scores of all rows too.
    let most_rows = match (shape.dim().max(shape.dim_v), T::DTYPE == lz_core::DType::F32) {
        (0..=64, true) => MOST_ROWS * 4,
        (0..=64, false) => MOST_ROWS * 2,
        (65..=256, _) => MOST_ROWS,
        _ => MOST_ROWS / 2,
    };
    let (mut blocks, mut chunks, mut work, mut most) = (0, 1, 0usize, 0);
    for index in 0..problem.sequences {
        let sequence = (problem.sequence)(index);
        let rows = sequence.queries * shape.group;
        most = most.max(rows);
        blocks = blocks.max(rows.div_ceil(most_rows));
        chunks = chunks.max(sequence.keys.div_ceil(length));
        work = work.saturating_add(rows.saturating_mul(sequence.keys));
    }
    let work = work.saturating_mul(shape.kv_heads).saturating_mul(shape.dim() + shape.dim_v);
    let split = split.map(|split| (Shared(split.workspace.as_mut_ptr().cast()), split.first_part));
    let shared = AllSync(problem);
    // Tasks are handed out one by one, so others do those between.
    let apart = if work < WORTH_SHARING { 1 } else { pool::threads() };
    let neighbours = split.is_some() || blocks == 1;
    let together = if stream::takes(shape, most) && heads_are_neighbours(&(problem.sequence)(0)) {
        heads_together(problem.sequences * shape.kv_heads * chunks, apart, most)
    } else {
        1
    };
    let groups = shape.kv_heads.div_ceil(together);
    let task = |number: usize| {
        let problem = shared.get();
        // Heads of a part follow each other: their keys may be neighbours. Unsplit, it is the blocks of a head, which share all keys.
        let (index, chunk, group, block) = if split.is_some() {
            let (rest, group) = (number / groups, number % groups);
            let (rest, chunk) = (rest / chunks, rest % chunks);
            (rest / blocks, chunk, group, blocks - 1 - rest % blocks)
        } else {
            let (rest, block) = (number / blocks, blocks - 1 - number % blocks);
            (rest / groups, 0, rest % groups, block)
        };
        let sequence = (problem.sequence)(index);
        let all = sequence.queries * shape.group;
        let rows = (block * most_rows).min(all)..((block + 1) * most_rows).min(all);
        if rows.is_empty() {
            return;
        }
        let first_of = |group: usize| group * shape.kv_heads / groups;
        let (head, heads) = (first_of(group), first_of(group + 1) - first_of(group));
        let next_head = Some(group + apart).filter(|next| neighbours && *next < groups).map(first_of);
        let task = Task { shape, sequence: &sequence, head, heads, rows, next_head };
        let whole = task.visible(0).start..task.visible(task.rows.len() - 1).end;
        let parts = sequence.keys.div_ceil(length);
        match split {
            Some((workspace, first_part)) if parts > 1 => {
                if chunk >= parts {
                    return;
                }
                let keys = whole.start.max(chunk * length)..whole.end.min((chunk + 1) * length);
                let places = Places { workspace, first: first_part(index), parts, chunk };
                s.attend(&task, &|take| take(keys.clone()), &|task, scratch| places.store(s, task, scratch));
            }
            _ if chunk > 0 => {}
            _ => {
                let ranges: Ranges<'_> = &|take| take(whole.clone());
                s.attend(&task, ranges, &|task, scratch| finish(s, task, scratch, ranges));
            }
        }
    };
    let tasks = problem.sequences * groups * blocks * chunks;
    for_each(work, tasks, &task);
    if let Some((workspace, first_part)) = split.filter(|_| chunks > 1) {
        let join = |number: usize| {
            let problem = shared.get();
            let (index, head) = (number / shape.kv_heads, number % shape.kv_heads);
            let sequence = (problem.sequence)(index);
            let parts = sequence.keys.div_ceil(length);
            let rows = 0..sequence.queries * shape.group;
            let task = Task { shape, sequence: &sequence, head, heads: 1, rows, next_head: None };
            if parts > 1 {
                let places = Places { workspace, first: first_part(index), parts, chunk: 0 };
                (0..task.rows.len()).for_each(|row| places.join(s, &task, row));
            }
        };
        for_each(work, problem.sequences * shape.kv_heads, &join);
    }
}

/// Whether keys of neighbouring heads are closer to each other than neighbouring keys of a head.
fn heads_are_neighbours<T>(sequence: &Sequence<'_, T>) -> bool {
    sequence.k.head.unsigned_abs() < sequence.k.position.unsigned_abs()
}

/// How many heads of so many `rows` a task streams together, of `tasks` if each had a head of its own. Bits do not depend on it.
fn heads_together(tasks: usize, threads: usize, rows: usize) -> usize {
    let most = stream::ROWS_TOGETHER / rows.max(1);
    // Every thread should get some tasks, so that the last one is not long awaited.
    if threads == 1 { most } else { most.min(tasks / (threads * 4)).max(1) }
}

/// As [`run`], for queries that an indptr divides: where it falls, requests share rows of the output, and one thread writes them.
pub(crate) fn run_ragged<S: Attend, T: Float>(s: S, problem: &Problem<'_, '_, T>, indptr: &[i32]) {
    if indptr.is_sorted() {
        run(s, problem, None);
    } else {
        pool::with_threads(1, || run(s, problem, None));
    }
}

/// Some rows over listed ranges of keys, for operations that say themselves which keys a row sees.
pub(crate) fn attend_to<S: Attend, T: Float>(
    s: S,
    shape: &Shape,
    sequence: &Sequence<'_, T>,
    head: usize,
    rows: Range<usize>,
    ranges: Ranges<'_>,
) {
    let mut start = rows.start;
    while start < rows.end {
        let end = rows.end.min(start + MOST_ROWS);
        let task = Task { shape, sequence, head, heads: 1, rows: start..end, next_head: None };
        s.attend(&task, ranges, &|task, scratch| finish(s, task, scratch, ranges));
        start = end;
    }
}

/// Runs tasks on the pool if there is enough to do.
pub(crate) fn for_each(work: usize, tasks: usize, task: &(impl Fn(usize) + Sync)) {
    if work < WORTH_SHARING {
        (0..tasks).for_each(task);
    } else {
        pool::for_each(tasks, task);
    }
}

/// Instruction sets by the ways in which they attend.
pub(crate) trait Attend: Simd {
    /// Attends from the rows of a task to the keys of `ranges`, and hands the state of every row to `end`.
    fn attend<T: Float>(self, task: &Task<'_, '_, T>, ranges: Ranges<'_>, end: End<'_, T>);
}

/// What takes the state of every row of a task.
pub(super) type End<'e, T> = &'e dyn Fn(&Task<'_, '_, T>, &Scratch);

macro_rules! attends_by_vectors {
    ($($simd:ty),*) => {
        $(impl Attend for $simd {
            fn attend<T: Float>(self, task: &Task<'_, '_, T>, ranges: Ranges<'_>, end: End<'_, T>) {
                by_vectors(self, task, ranges, end);
            }
        })*
    };
}
attends_by_vectors!(crate::simd::Scalar);
#[cfg(target_arch = "x86_64")]
attends_by_vectors!(crate::simd::Avx2, crate::simd::Avx512);

#[cfg(target_arch = "x86_64")]
impl Attend for crate::simd::Amx {
    fn attend<T: Float>(self, task: &Task<'_, '_, T>, ranges: Ranges<'_>, end: End<'_, T>) {
        if T::DTYPE == lz_core::DType::BF16 && task.rows.len() > stream::STREAMED_ROWS {
            // SAFETY: `self` is the proof that AMX is available, and T is bf16.
            unsafe { super::matrix::attend(self.vectors(), task, ranges, end) };
        } else {
            by_vectors(self.vectors(), task, ranges, end);
        }
    }
}

fn by_vectors<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, ranges: Ranges<'_>, end: End<'_, T>) {
    let rows = task.rows.len();
    let streams = stream::takes(task.shape, rows);
    with_scratch::<S, _>(task.shape, rows * task.heads, streams, |scratch| {
        if streams {
            stream::attend(s, task, ranges, scratch);
        } else {
            tile::attend(s, task, ranges, scratch);
        }
        (0..task.heads).for_each(|head| end(&task.one(head), &scratch.states_from(head * rows)));
    });
}

/// Divides and writes the rows of a task; those that cannot be trusted are computed anew.
fn finish<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, scratch: &Scratch, ranges: Ranges<'_>) {
    for row in 0..task.rows.len() {
        // SAFETY: the scratch memory holds the state of every row.
        let (highest, total, average) = unsafe {
            (*scratch.highest.add(row), *scratch.total.add(row), scratch.o.add(row * scratch.width))
        };
        if !write_row(s, task, row, highest, total, average) {
            careful::write_row(task, row, ranges);
        }
    }
}

/// Writes a row from its state; `false` if it cannot be trusted.
#[inline(never)]
pub(super) fn write_row<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    row: usize,
    highest: f32,
    total: f32,
    average: *const f32,
) -> bool {
    // A sum of 0 may be a row without keys, or one whose scores were too low for f32. NaN is not to be trusted either.
    let sound = total > 0.0 && total < f32::INFINITY && highest.abs() <= trusted_highest::<T>();
    if !sound {
        return false;
    }
    let (query, head) = task.row(row);
    let output = task.sequence.output.at(query, head).cast_mut();
    let sound = s.vectorize(|| {
        let scale = s.splat(1.0 / total);
        let mut nothing = s.splat(0.0);
        // SAFETY: the state has `dim_v` numbers, rounded up to vectors; the row lies inside the output, and only this task writes it.
        unsafe {
            vectors!(S, task.shape.dim_v, |span| {
                let value = s.mul(<f32 as Float>::load(s, average, span), scale);
                nothing = s.fma(value, s.splat(0.0), nothing);
                T::store(s, output, span, value);
            });
        }
        // 0 times what is not finite is NaN.
        s.sum(nothing) == 0.0
    });
    if sound && !task.sequence.lse.data.is_null() {
        let lse = f64::from(highest) * std::f64::consts::LN_2 + f64::from(total).ln();
        careful::write_lse(&task.sequence.lse, query, head, lse as f32);
    }
    sound
}

/// Where the parts of a sequence's rows are kept between the two halves of a split call.
struct Places {
    workspace: Shared,
    first: usize,
    parts: usize,
    chunk: usize,
}

impl Places {
    /// The state of one row after one part of the keys: highest score, sum, averages.
    fn at<T: Float>(&self, task: &Task<'_, '_, T>, row: usize, chunk: usize) -> *mut f32 {
        let shape = task.shape;
        let rows = task.sequence.queries * shape.group;
        let row = task.head * rows + task.rows.start + row;
        let place = self.first * rows * shape.kv_heads + row * self.parts + chunk;
        self.workspace.0.wrapping_add(place * (shape.dim_v + 2))
    }

    fn store<S: Simd, T: Float>(&self, s: S, task: &Task<'_, '_, T>, scratch: &Scratch) {
        s.vectorize(|| {
            for row in 0..task.rows.len() {
                let to = self.at(task, row, self.chunk);
                // SAFETY: the workspace has room for every part of every row, and this task alone writes this one.
                unsafe {
                    *to = *scratch.highest.add(row);
                    *to.add(1) = *scratch.total.add(row);
                    let from = scratch.o.add(row * scratch.width);
                    std::ptr::copy_nonoverlapping(from, to.add(2), task.shape.dim_v);
                }
            }
        });
    }

    fn join<S: Simd, T: Float>(&self, s: S, task: &Task<'_, '_, T>, row: usize) {
        let dim = task.shape.dim_v;
        let mut sums = [0.0f32; careful::MOST_FEATURES];
        let (mut highest, mut total) = (f32::NEG_INFINITY, 0.0f32);
        // SAFETY: every part of this row was written before, and `dim_v` is at most MOST_FEATURES.
        unsafe {
            for chunk in 0..self.parts {
                highest = highest.max(*self.at(task, row, chunk));
            }
            for chunk in 0..self.parts {
                let from = self.at(task, row, chunk);
                let factor = (*from - highest.max(f32::MIN)).exp2();
                total += *from.add(1) * factor;
                for (feature, sum) in sums[..dim].iter_mut().enumerate() {
                    *sum += *from.add(2 + feature) * factor;
                }
            }
        }
        if !write_row(s, task, row, highest, total, sums.as_ptr()) {
            let whole = task.visible(row);
            careful::write_row(task, row, &|take| take(whole.clone()));
        }
    }
}
