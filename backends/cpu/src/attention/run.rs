//! Partitions a call into tasks, runs them on the thread pool, and reduces split-KV partial results.
//!
//! The partition depends only on the sizes of the call, so results are bit-identical for any number of
//! threads.

use std::ops::Range;

use super::exact;
use super::problem::{Sequence, Shape};
use super::task::{MAX_ROWS, Ranges, Scratch, Task, max_accurate_score, with_scratch};
use super::{stream, tile};
use crate::pool;
use crate::simd::{Float, Simd, vectors};

/// Keys per part of a split-KV call: few, so that the heads of a layout with adjacent heads are read
/// together.
pub(crate) const CHUNK: usize = 256;

/// The same for a single KV head with many rows, whose states are large.
pub(crate) const LONG_CHUNK: usize = 1024;

/// Calls with fewer multiply-adds run on the caller's thread.
const MIN_PARALLEL_MACS: usize = 1 << 19;

/// All sequences of a call.
pub(crate) struct Problem<'p, 'a, T> {
    pub shape: Shape,
    pub sequences: usize,
    /// Returns sequence `n`. Must be cheap: every task calls it.
    pub sequence: &'p (dyn Fn(usize) -> Sequence<'a, T> + Sync),
}

/// Split-KV parameters.
pub(crate) struct Split<'w> {
    /// Keys per part.
    pub chunk: usize,
    /// Workspace for the partial state of every row and part: `(dim_v + 2)` f32 each.
    pub workspace: &'w mut [u8],
    /// Index of the first part of a sequence, in parts of one row; ranges of different sequences do not
    /// overlap.
    pub first_part: &'w (dyn Fn(usize) -> usize + Sync),
}

/// A pointer shared by tasks, each of which writes a disjoint part.
#[derive(Clone, Copy)]
struct SharedPtr(*mut f32);
// SAFETY: tasks write disjoint parts; see `SharedPtr`.
unsafe impl Send for SharedPtr {}
// SAFETY: as above.
unsafe impl Sync for SharedPtr {}

pub(super) struct SyncRef<'x, P>(pub &'x P);
// SAFETY: a problem only holds addresses of tensors that the call borrows: inputs are read, and each row of
// an output is written by one task.
unsafe impl<P> Sync for SyncRef<'_, P> {}
impl<P> SyncRef<'_, P> {
    pub(super) fn get(&self) -> &P {
        self.0
    }
}

/// Computes attention for all sequences.
pub(crate) fn run<S: Attend, T: Float>(s: S, problem: &Problem<'_, '_, T>, split: Option<Split<'_>>) {
    let shape = &problem.shape;
    if shape.group == 0 || shape.kv_heads == 0 || problem.sequences == 0 {
        return;
    }
    let length = split.as_ref().map_or(usize::MAX, |split| split.chunk);
    // KV tiles are packed once per `max_rows` rows. Scratch memory grows with the head dimension; the AMX
    // path also stores the scores of all rows.
    let max_rows = match (shape.dim().max(shape.dim_v), T::DTYPE == lz_core::DType::F32) {
        (0..=64, true) => MAX_ROWS * 4,
        (0..=64, false) => MAX_ROWS * 2,
        (65..=256, _) => MAX_ROWS,
        _ => MAX_ROWS / 2,
    };
    let (mut blocks, mut chunks, mut work, mut most) = (0, 1, 0usize, 0);
    for index in 0..problem.sequences {
        let sequence = (problem.sequence)(index);
        let rows = sequence.queries * shape.group;
        most = most.max(rows);
        blocks = blocks.max(rows.div_ceil(max_rows));
        chunks = chunks.max(sequence.keys.div_ceil(length));
        work = work.saturating_add(rows.saturating_mul(sequence.keys));
    }
    let work = work.saturating_mul(shape.kv_heads).saturating_mul(shape.dim() + shape.dim_v);
    let split = split.map(|split| (SharedPtr(split.workspace.as_mut_ptr().cast()), split.first_part));
    let shared = SyncRef(problem);
    // Tasks are handed out in order, so the other threads take the ones in between.
    let concurrent_tasks = if work < MIN_PARALLEL_MACS { 1 } else { pool::threads() };
    let prefetch_next_head = split.is_some() || blocks == 1;
    let task_heads = if stream::supports(shape, most) && heads_are_adjacent(&(problem.sequence)(0)) {
        heads_per_task(problem.sequences * shape.kv_heads * chunks, concurrent_tasks, most)
    } else {
        1
    };
    let groups = shape.kv_heads.div_ceil(task_heads);
    let task = |number: usize| {
        let problem = shared.get();
        // With split-KV, consecutive tasks are heads of the same part, whose keys may be adjacent. Without,
        // they are the row blocks of a head, which share all keys.
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
        let rows = (block * max_rows).min(all)..((block + 1) * max_rows).min(all);
        if rows.is_empty() {
            return;
        }
        let first_of = |group: usize| group * shape.kv_heads / groups;
        let (head, heads) = (first_of(group), first_of(group + 1) - first_of(group));
        let next_head =
            Some(group + concurrent_tasks).filter(|next| prefetch_next_head && *next < groups).map(first_of);
        let task = Task { shape, sequence: &sequence, head, heads, rows, next_head };
        let whole = task.visible(0).start..task.visible(task.rows.len() - 1).end;
        let parts = sequence.keys.div_ceil(length);
        match split {
            Some((workspace, first_part)) if parts > 1 => {
                if chunk >= parts {
                    return;
                }
                let keys = whole.start.max(chunk * length)..whole.end.min((chunk + 1) * length);
                let split_states = SplitKvStates { workspace, first: first_part(index), parts, chunk };
                s.attend(&task, &|take| take(keys.clone()), &|task, scratch| {
                    split_states.store(s, task, scratch)
                });
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
                let split_states = SplitKvStates { workspace, first: first_part(index), parts, chunk: 0 };
                (0..task.rows.len()).for_each(|row| split_states.join(s, &task, row));
            }
        };
        for_each(work, problem.sequences * shape.kv_heads, &join);
    }
}

/// Whether keys of adjacent heads are closer together than adjacent keys of a head.
fn heads_are_adjacent<T>(sequence: &Sequence<'_, T>) -> bool {
    sequence.k.head.unsigned_abs() < sequence.k.position.unsigned_abs()
}

/// Number of heads that a task streams together. `tasks` is the number of tasks with one head each. Does not
/// affect results.
fn heads_per_task(tasks: usize, threads: usize, rows: usize) -> usize {
    let most = stream::ROWS_TOGETHER / rows.max(1);
    // Every thread should get several tasks, for load balance.
    if threads == 1 { most } else { most.min(tasks / (threads * 4)).max(1) }
}

/// Like [`run`], for queries given by an indptr.
pub(crate) fn run_ragged<S: Attend, T: Float>(s: S, problem: &Problem<'_, '_, T>, indptr: &[i32]) {
    single_threaded_unless_sorted(indptr, || run(s, problem, None));
}

/// Calls `attend` for queries given by an indptr. If it is not sorted, requests share rows of the output, and a single thread
/// writes them.
pub(super) fn single_threaded_unless_sorted<R>(indptr: &[i32], attend: impl FnOnce() -> R) -> R {
    if indptr.is_sorted() { attend() } else { pool::with_threads(1, attend) }
}

/// Attention of some rows over given key ranges, for operations with their own sparsity pattern.
pub(crate) fn attend_to<S: Attend, T: Float>(
    s: S,
    shape: &Shape,
    sequence: &Sequence<'_, T>,
    head: usize,
    rows: Range<usize>,
    ranges: Ranges<'_>,
) {
    // Scratch memory grows with the head dimension.
    let max_rows = if shape.dim().max(shape.dim_v) > 256 { MAX_ROWS / 2 } else { MAX_ROWS };
    let mut start = rows.start;
    while start < rows.end {
        let end = rows.end.min(start + max_rows);
        let task = Task { shape, sequence, head, heads: 1, rows: start..end, next_head: None };
        s.attend(&task, ranges, &|task, scratch| finish(s, task, scratch, ranges));
        start = end;
    }
}

/// Runs tasks, on the thread pool if there is enough work.
pub(crate) fn for_each(work: usize, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    pool::for_each_if(work >= MIN_PARALLEL_MACS, tasks, task);
}

/// Selects the attention path of an instruction set.
pub(crate) trait Attend: Simd {
    /// Computes attention of the rows of a task over the keys of `ranges`, and passes the state of every row
    /// to `epilogue`.
    fn attend<T: Float>(self, task: &Task<'_, '_, T>, ranges: Ranges<'_>, epilogue: Epilogue<'_, T>);
}

/// Epilogue: consumes the state of every row of a task.
pub(super) type Epilogue<'e, T> = &'e dyn Fn(&Task<'_, '_, T>, &Scratch);

macro_rules! impl_attend_simd {
    ($($simd:ty),*) => {
        $(impl Attend for $simd {
            fn attend<T: Float>(self, task: &Task<'_, '_, T>, ranges: Ranges<'_>, epilogue: Epilogue<'_, T>) {
                attend_simd(self, task, ranges, epilogue);
            }
        })*
    };
}
impl_attend_simd!(crate::simd::Scalar);
#[cfg(target_arch = "x86_64")]
impl_attend_simd!(crate::simd::Avx2, crate::simd::Avx512);
#[cfg(target_arch = "aarch64")]
impl_attend_simd!(crate::simd::Neon);

#[cfg(target_arch = "x86_64")]
impl Attend for crate::simd::Amx {
    fn attend<T: Float>(self, task: &Task<'_, '_, T>, ranges: Ranges<'_>, epilogue: Epilogue<'_, T>) {
        if const { matches!(T::DTYPE, lz_core::DType::BF16) } && task.rows.len() > stream::STREAMED_ROWS {
            // SAFETY: `self` proves AMX, and T is bf16.
            unsafe { super::amx::attend(self.vectors(), task, ranges, epilogue) };
        } else {
            attend_simd(self.vectors(), task, ranges, epilogue);
        }
    }
}

fn attend_simd<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    ranges: Ranges<'_>,
    epilogue: Epilogue<'_, T>,
) {
    let rows = task.rows.len();
    let streams = stream::supports(task.shape, rows);
    with_scratch::<S, _>(task.shape, rows * task.heads, streams, |scratch| {
        if streams {
            stream::attend(s, task, ranges, scratch);
        } else {
            tile::attend(s, task, ranges, scratch);
        }
        (0..task.heads).for_each(|head| epilogue(&task.one(head), &scratch.states_from(head * rows)));
    });
}

/// Normalizes and writes the rows of a task; rows without sufficient accuracy are recomputed in f64.
fn finish<S: Simd, T: Float>(s: S, task: &Task<'_, '_, T>, scratch: &Scratch, ranges: Ranges<'_>) {
    for row in 0..task.rows.len() {
        // SAFETY: the scratch memory holds the state of every row.
        let (running_max, sum_exp, accumulator) = unsafe {
            (*scratch.running_max.add(row), *scratch.sum_exp.add(row), scratch.o.add(row * scratch.width))
        };
        if !write_row(s, task, row, running_max, sum_exp, accumulator) {
            exact::write_row(task, row, ranges);
        }
    }
}

/// Writes a row from its state; `false` if f32 is not accurate enough.
#[inline(never)]
pub(super) fn write_row<S: Simd, T: Float>(
    s: S,
    task: &Task<'_, '_, T>,
    row: usize,
    running_max: f32,
    sum_exp: f32,
    accumulator: *const f32,
) -> bool {
    // A sum of 0 is either a row without keys, or one whose scores are too low for f32. NaN is rejected too.
    let sound = sum_exp > 0.0 && sum_exp < f32::INFINITY && running_max.abs() <= max_accurate_score::<T>();
    if !sound {
        return false;
    }
    let (query, head) = task.row(row);
    // SAFETY: the head is one of the call, which has a sink for each.
    let sink = task.sequence.sinks.and_then(|sinks| unsafe { sinks.at(head) });
    let Some((running_max, sum_exp, factor)) = with_sink::<T>(sink, running_max, sum_exp) else {
        return false;
    };
    let output = task.sequence.output.at(query, head).cast_mut();
    let sound = s.vectorize(|| {
        let scale = s.splat(factor / sum_exp);
        let mut nothing = s.splat(0.0);
        // SAFETY: the state has `dim_v` elements, rounded up to vectors; the row is inside the output, and
        // only this task writes it.
        unsafe {
            vectors!(S, task.shape.dim_v, |span| {
                let value = s.mul(<f32 as Float>::load(s, accumulator, span), scale);
                nothing = s.fma(value, s.splat(0.0), nothing);
                T::store(s, output, span, value);
            });
        }
        // 0 * x is NaN for every non-finite x.
        s.sum(nothing) == 0.0
    });
    if sound && !task.sequence.lse.data.is_null() {
        let lse = f64::from(running_max) * std::f64::consts::LN_2 + f64::from(sum_exp).ln();
        exact::write_lse(&task.sequence.lse, query, head, lse as f32);
    }
    sound
}

/// Adds a sink to a row's state: the new maximum and sum, and the factor of its accumulators. `None` if f32 is not accurate enough.
fn with_sink<T: Float>(sink: Option<f32>, running_max: f32, sum_exp: f32) -> Option<(f32, f32, f32)> {
    let Some(sink) = sink else { return Some((running_max, sum_exp, 1.0)) };
    let sink = sink * std::f32::consts::LOG2_E;
    // False for NaN.
    let is_accurate = sink.abs() <= max_accurate_score::<T>();
    if !is_accurate {
        return None;
    }
    let highest = running_max.max(sink);
    let factor = (running_max - highest).exp2();
    Some((highest, sum_exp * factor + (sink - highest).exp2(), factor))
}

/// Partial states of a split-KV call in the workspace.
struct SplitKvStates {
    workspace: SharedPtr,
    first: usize,
    parts: usize,
    chunk: usize,
}

impl SplitKvStates {
    /// State of one row after one part of the keys: running maximum, sum of exponentials, accumulators.
    fn at<T: Float>(&self, task: &Task<'_, '_, T>, row: usize, chunk: usize) -> *mut f32 {
        let shape = task.shape;
        let rows = task.sequence.queries * shape.group;
        let row = task.head * rows + task.rows.start + row;
        let index = self.first * rows * shape.kv_heads + row * self.parts + chunk;
        self.workspace.0.wrapping_add(index * (shape.dim_v + 2))
    }

    fn store<S: Simd, T: Float>(&self, s: S, task: &Task<'_, '_, T>, scratch: &Scratch) {
        s.vectorize(|| {
            for row in 0..task.rows.len() {
                let to = self.at(task, row, self.chunk);
                // SAFETY: the workspace has space for every part of every row, and only this task writes this
                // one.
                unsafe {
                    *to = *scratch.running_max.add(row);
                    *to.add(1) = *scratch.sum_exp.add(row);
                    let from = scratch.o.add(row * scratch.width);
                    std::ptr::copy_nonoverlapping(from, to.add(2), task.shape.dim_v);
                }
            }
        });
    }

    fn join<S: Simd, T: Float>(&self, s: S, task: &Task<'_, '_, T>, row: usize) {
        let dim = task.shape.dim_v;
        let mut sums = [0.0f32; exact::MAX_HEAD_DIM];
        let (mut running_max, mut sum_exp) = (f32::NEG_INFINITY, 0.0f32);
        // SAFETY: every part of this row was written before, and `dim_v` is at most MAX_HEAD_DIM.
        unsafe {
            for chunk in 0..self.parts {
                running_max = running_max.max(*self.at(task, row, chunk));
            }
            for chunk in 0..self.parts {
                let from = self.at(task, row, chunk);
                let factor = (*from - running_max.max(f32::MIN)).exp2();
                sum_exp += *from.add(1) * factor;
                for (feature, sum) in sums[..dim].iter_mut().enumerate() {
                    *sum += *from.add(2 + feature) * factor;
                }
            }
        }
        if !write_row(s, task, row, running_max, sum_exp, sums.as_ptr()) {
            let whole = task.visible(row);
            exact::write_row(task, row, &|take| take(whole.clone()));
        }
    }
}
