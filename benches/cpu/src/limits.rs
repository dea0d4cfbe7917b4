//! What this machine can do at best, measured in the same run with the same threads: memory read, written and both, and
//! fused multiply-adds.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use lz_cpu::pool;
use lz_cpu::simd::{Avx2, Avx512, Scalar, Simd};

use crate::cases::Work;
use crate::report::Report;

/// Larger than any cache: what the last level reports on such machines is up to 300 MiB.
const LARGE: usize = 384 << 20;

/// Bytes that one task moves.
const TASK: usize = 256 << 10;

/// The limits with a number of threads.
pub struct Limits {
    /// a = b + s c with stores past the caches, GB/s.
    triad: f64,
    /// Sums, GB/s.
    read: f64,
    /// f32, GFLOP/s.
    flops: f64,
    /// A call of the pool that does nothing, in nanoseconds.
    forked: f64,
    memory: RefCell<Memory>,
}

/// Two buffers that grow.
#[derive(Default)]
struct Memory {
    from: Vec<f32>,
    to: Vec<f32>,
}

/// A pointer that tasks share; each has a part of its own.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: tasks touch parts that do not overlap.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, index: usize) -> *mut f32 {
        self.0.wrapping_add(index)
    }
}

/// Runs a generic function with the widest instruction set.
macro_rules! widest {
    ($function:ident($($argument:expr),*)) => {
        match (Avx512::detect(), Avx2::detect()) {
            (Some(simd), _) => simd.vectorize(|| $function(simd, $($argument),*)),
            (None, Some(simd)) => simd.vectorize(|| $function(simd, $($argument),*)),
            (None, None) => $function(Scalar, $($argument),*),
        }
    };
}

/// Reads `count` numbers; `count` is a multiple of 64.
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn read<S: Simd>(s: S, from: *const f32, count: usize) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let mut at = 0;
    while at + 4 * S::LANES <= count {
        for (k, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the numbers.
            *sum = s.add(*sum, unsafe { s.load(from.add(at + k * S::LANES)) });
        }
        at += 4 * S::LANES;
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// Writes `count` numbers.
/// # Safety
/// They are writable, from an address that is a multiple of 64.
#[inline(always)]
unsafe fn write<S: Simd>(s: S, to: *mut f32, count: usize, value: f32, stream: bool) {
    let value = s.splat(value);
    let mut at = 0;
    while at + S::LANES <= count {
        // SAFETY: the caller vouches for the numbers and the address.
        unsafe { if stream { s.stream(to.add(at), value) } else { s.store(to.add(at), value) } };
        at += S::LANES;
    }
    s.fence();
}

/// # Safety
/// Both have `count` numbers, `to` from a multiple of 64.
#[inline(always)]
unsafe fn triad_part<S: Simd>(s: S, to: *mut f32, b: *const f32, c: *const f32, count: usize) {
    let factor = s.splat(3.0);
    let mut at = 0;
    while at + S::LANES <= count {
        // SAFETY: the caller vouches for the numbers and the address.
        unsafe { s.stream(to.add(at), s.fma(s.load(c.add(at)), factor, s.load(b.add(at)))) };
        at += S::LANES;
    }
    s.fence();
}

/// Fused multiply-adds in registers alone; returns how many numbers were touched.
#[inline(always)]
fn multiply_add<S: Simd>(s: S, rounds: usize) -> usize {
    let mut sums = [s.splat(0.5); 12];
    let (a, b) = (s.splat(black_box(0.999)), s.splat(black_box(0.001)));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = s.fma(*sum, a, b);
        }
    }
    for sum in sums {
        black_box(s.sum(sum));
    }
    rounds * 12 * S::LANES
}

fn aligned(buffer: &mut [f32]) -> Shared {
    let skip = buffer.as_ptr().align_offset(64).min(buffer.len());
    Shared(buffer.as_mut_ptr().wrapping_add(skip))
}

/// What it costs to hand out tasks that do nothing and to wait for them: the median, in nanoseconds.
fn forked(tasks: usize) -> f64 {
    let mut times: Vec<f64> = (0..20_000)
        .map(|_| {
            let start = Instant::now();
            pool::for_each(tasks, &|task| {
                black_box(task);
            });
            start.elapsed().as_nanos() as f64
        })
        .collect();
    crate::median(&mut times)
}

/// The best of some runs, in seconds.
fn best(runs: usize, mut body: impl FnMut()) -> f64 {
    let threads = pool::threads();
    (0..runs)
        .map(|_| {
            let start = crate::now(threads);
            body();
            (crate::now(threads) - start) / 1e9
        })
        .fold(f64::INFINITY, f64::min)
}

impl Limits {
    /// Measures, with the threads that calls may use now.
    pub fn measure() -> Limits {
        let count = LARGE / 4;
        let mut memory = Memory { from: vec![1.0; count + 16], to: vec![0.0; count + 16] };
        let (from, to) = (aligned(&mut memory.from), aligned(&mut memory.to));
        let (step, third) = (TASK / 4, count / 3 / 64 * 64);
        let triad = best(5, || {
            pool::for_each(third / step, &|task| {
                let at = task * step;
                widest!(triad_safe(to.at(at), from.at(at), from.at(third + at), step));
            });
        });
        let reading = best(5, || {
            pool::for_each(count / step, &|task| {
                black_box(widest!(read_safe(from.at(task * step), step)));
            });
        });
        let rounds = 2_000_000;
        let tasks = pool::threads();
        let mut touched = 0;
        let adding = best(5, || {
            let counted = std::sync::atomic::AtomicUsize::new(0);
            pool::for_each(tasks, &|_| {
                let part = widest!(multiply_add(rounds));
                counted.fetch_add(part, std::sync::atomic::Ordering::Relaxed);
            });
            touched = counted.into_inner();
        });
        Limits {
            triad: (third / step * step * 12) as f64 / triad / 1e9,
            read: (count / step * step * 4) as f64 / reading / 1e9,
            flops: touched as f64 * 2.0 / adding / 1e9,
            forked: forked(tasks),
            memory: RefCell::new(memory),
        }
    }

    /// Tells them.
    pub fn print(&self, report: &Report, threads: usize) {
        report.limit(&format!("limit: triad with streamed stores {threads}t"), "GB/s", self.triad);
        report.limit(&format!("limit: read {threads}t"), "GB/s", self.read);
        report.limit(&format!("limit: f32 fused multiply-add {threads}t"), "GFLOP/s", self.flops);
        report.limit(&format!("pool: tasks handed out and waited for {threads}t"), "ns", self.forked);
    }

    /// Moves as many bytes as a call must, and does nothing else: what the machine needs at least at this size.
    pub fn least(&self, work: &Work) {
        let mut memory = self.memory.borrow_mut();
        let Memory { from, to } = &mut *memory;
        let (most_read, most_written) = (work.read / 4 + 4096, work.written / 4 + 4096);
        if from.len() < most_read {
            from.resize(most_read, 1.0);
        }
        if to.len() < most_written {
            to.resize(most_written, 0.0);
        }
        let (from, to) = (aligned(from), aligned(to));
        let whole = work.read + work.written;
        let tasks = if whole < 1 << 19 { 1 } else { whole.div_ceil(TASK) };
        let stream = work.written >= 8 << 20;
        let parts = |bytes: usize| bytes / 4 / tasks / 64 * 64;
        let (reads, writes) = (parts(work.read), parts(work.written));
        pool::for_each(tasks, &|task| {
            // In turns that fit the first-level cache, as a kernel would.
            let turns = (reads + writes).div_ceil(4096).max(1);
            let (read_turn, write_turn) = (reads / turns / 64 * 64, writes / turns / 64 * 64);
            for turn in 0..turns {
                let value = widest!(read_safe(from.at(task * reads + turn * read_turn), read_turn));
                widest!(write_safe(to.at(task * writes + turn * write_turn), write_turn, value, stream));
            }
        });
    }

    /// The share of the machine's limit that a call reaches: by bytes, or by operations where those take longer.
    pub fn share(&self, work: &Work, least: f64, ours: f64) -> Option<f64> {
        let by_operations = work.flops / self.flops;
        (ours > 0.0).then(|| least.max(by_operations) / ours)
    }
}

/// [`read`] of a part of the buffers above.
#[inline(always)]
fn read_safe<S: Simd>(s: S, from: *const f32, count: usize) -> f32 {
    // SAFETY: callers cut the buffers into parts that lie inside.
    unsafe { read(s, from, count) }
}

/// [`write`] of a part of the buffers above.
#[inline(always)]
fn write_safe<S: Simd>(s: S, to: *mut f32, count: usize, value: f32, stream: bool) {
    // SAFETY: as above; parts are multiples of 64 numbers from an aligned start.
    unsafe { write(s, to, count, value, stream) }
}

/// [`triad_part`] of a part of the buffers above.
#[inline(always)]
fn triad_safe<S: Simd>(s: S, to: *mut f32, b: *const f32, c: *const f32, count: usize) {
    // SAFETY: as above.
    unsafe { triad_part(s, to, b, c, count) }
}
