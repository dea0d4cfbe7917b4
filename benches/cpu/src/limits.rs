//! Machine limits, measured in the same run with the same threads: memory read, write and triad bandwidth,
//! and FMA throughput.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use lz_cpu::pool;
#[cfg(target_arch = "aarch64")]
use lz_cpu::simd::Neon;
#[cfg(target_arch = "x86_64")]
use lz_cpu::simd::{Avx2, Avx512};
use lz_cpu::simd::{Scalar, Simd};

use crate::cases::Work;
use crate::report::Report;

/// Larger than any cache: up to 300 MiB of last-level cache are reported on such machines.
const LARGE: usize = 384 << 20;

/// Bytes that one task moves.
const TASK: usize = 256 << 10;

/// The limits for one thread count.
pub struct Limits {
    /// a = b + s c with non-temporal stores, GB/s.
    triad: f64,
    /// Read bandwidth (sums), GB/s.
    read: f64,
    /// f32, GFLOP/s.
    flops: f64,
    /// Fork-join latency of the pool with empty tasks, in nanoseconds.
    fork_join: f64,
    memory: RefCell<Memory>,
}

/// Two growing buffers.
#[derive(Default)]
struct Memory {
    from: Vec<f32>,
    to: Vec<f32>,
}

/// A pointer shared by tasks with disjoint parts.
#[derive(Clone, Copy)]
struct SharedPtr(*mut f32);

// SAFETY: tasks access disjoint parts.
unsafe impl Sync for SharedPtr {}

impl SharedPtr {
    fn at(&self, index: usize) -> *mut f32 {
        self.0.wrapping_add(index)
    }
}

/// Runs a generic function with the widest instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! with_widest_isa {
    ($function:ident($($argument:expr),*)) => {
        match (Avx512::detect(), Avx2::detect()) {
            (Some(simd), _) => simd.vectorize(|| $function(simd, $($argument),*)),
            (None, Some(simd)) => simd.vectorize(|| $function(simd, $($argument),*)),
            (None, None) => $function(Scalar, $($argument),*),
        }
    };
}

/// Runs a generic function with the widest instruction set.
#[cfg(target_arch = "aarch64")]
macro_rules! with_widest_isa {
    ($function:ident($($argument:expr),*)) => {
        match Neon::detect() {
            Some(simd) => simd.vectorize(|| $function(simd, $($argument),*)),
            None => $function(Scalar, $($argument),*),
        }
    };
}

/// Reads `count` elements; `count` is a multiple of 64.
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn read<S: Simd>(s: S, from: *const f32, count: usize) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let mut at = 0;
    while at + 4 * S::LANES <= count {
        for (k, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller guarantees the elements.
            *sum = s.add(*sum, unsafe { s.load(from.add(at + k * S::LANES)) });
        }
        at += 4 * S::LANES;
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// Writes `count` elements.
/// # Safety
/// They are writable, and the address is a multiple of 64.
#[inline(always)]
unsafe fn write<S: Simd>(s: S, to: *mut f32, count: usize, value: f32, stream: bool) {
    let value = s.splat(value);
    let mut at = 0;
    while at + S::LANES <= count {
        // SAFETY: the caller guarantees the elements and the alignment.
        unsafe { if stream { s.stream(to.add(at), value) } else { s.store(to.add(at), value) } };
        at += S::LANES;
    }
    s.fence();
}

/// # Safety
/// All have `count` elements, `to` aligned to 64 bytes.
#[inline(always)]
unsafe fn triad_part<S: Simd>(s: S, to: *mut f32, b: *const f32, c: *const f32, count: usize) {
    let factor = s.splat(3.0);
    let mut at = 0;
    while at + S::LANES <= count {
        // SAFETY: the caller guarantees the elements and the alignment.
        unsafe { s.stream(to.add(at), s.fma(s.load(c.add(at)), factor, s.load(b.add(at)))) };
        at += S::LANES;
    }
    s.fence();
}

/// FMAs in registers only; returns the number of elements processed.
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

fn aligned(buffer: &mut [f32]) -> SharedPtr {
    let skip = buffer.as_ptr().align_offset(64).min(buffer.len());
    SharedPtr(buffer.as_mut_ptr().wrapping_add(skip))
}

/// Fork-join latency: distributing empty tasks and waiting for them; the median, in nanoseconds.
fn fork_join(tasks: usize) -> f64 {
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
    /// Measures with the current thread limit.
    pub fn measure() -> Limits {
        let count = LARGE / 4;
        let mut memory = Memory { from: vec![1.0; count + 16], to: vec![0.0; count + 16] };
        let (from, to) = (aligned(&mut memory.from), aligned(&mut memory.to));
        let (step, third) = (TASK / 4, count / 3 / 64 * 64);
        let triad = best(5, || {
            pool::for_each(third / step, &|task| {
                let at = task * step;
                with_widest_isa!(triad_safe(to.at(at), from.at(at), from.at(third + at), step));
            });
        });
        let reading = best(5, || {
            pool::for_each(count / step, &|task| {
                black_box(with_widest_isa!(read_safe(from.at(task * step), step)));
            });
        });
        let rounds = 2_000_000;
        let tasks = pool::threads();
        let mut processed = 0;
        let adding = best(5, || {
            let counted = std::sync::atomic::AtomicUsize::new(0);
            pool::for_each(tasks, &|_| {
                let part = with_widest_isa!(multiply_add(rounds));
                counted.fetch_add(part, std::sync::atomic::Ordering::Relaxed);
            });
            processed = counted.into_inner();
        });
        Limits {
            triad: (third / step * step * 12) as f64 / triad / 1e9,
            read: (count / step * step * 4) as f64 / reading / 1e9,
            flops: processed as f64 * 2.0 / adding / 1e9,
            fork_join: fork_join(tasks),
            memory: RefCell::new(memory),
        }
    }

    /// Prints the limits.
    pub fn print(&self, report: &Report, threads: usize) {
        report.limit(&format!("limit: triad with streamed stores {threads}t"), "GB/s", self.triad);
        report.limit(&format!("limit: read {threads}t"), "GB/s", self.read);
        report.limit(&format!("limit: f32 fused multiply-add {threads}t"), "GFLOP/s", self.flops);
        report.limit(&format!("pool: tasks handed out and waited for {threads}t"), "ns", self.fork_join);
    }

    /// Moves as many bytes as a call must, without computing: the lower bound of its time on this machine.
    pub fn minimum_traffic(&self, work: &Work) {
        let mut memory = self.memory.borrow_mut();
        let Memory { from, to } = &mut *memory;
        let (read_elements, write_elements) = (work.read / 4 + 4096, work.written / 4 + 4096);
        if from.len() < read_elements {
            from.resize(read_elements, 1.0);
        }
        if to.len() < write_elements {
            to.resize(write_elements, 0.0);
        }
        let (from, to) = (aligned(from), aligned(to));
        let whole = work.read + work.written;
        let tasks = if whole < 1 << 19 { 1 } else { whole.div_ceil(TASK) };
        let stream = work.written >= 8 << 20;
        let parts = |bytes: usize| bytes / 4 / tasks / 64 * 64;
        let (reads, writes) = (parts(work.read), parts(work.written));
        pool::for_each(tasks, &|task| {
            // In chunks that fit L1, as a kernel would.
            let chunks = (reads + writes).div_ceil(4096).max(1);
            let (read_chunk, write_chunk) = (reads / chunks / 64 * 64, writes / chunks / 64 * 64);
            for chunk in 0..chunks {
                let value =
                    with_widest_isa!(read_safe(from.at(task * reads + chunk * read_chunk), read_chunk));
                with_widest_isa!(write_safe(
                    to.at(task * writes + chunk * write_chunk),
                    write_chunk,
                    value,
                    stream
                ));
            }
        });
    }

    /// The share of the machine's limit that a call reaches: by bytes, or by FLOPs if those take longer.
    pub fn share(&self, work: &Work, minimum_traffic: f64, ours: f64) -> Option<f64> {
        let by_operations = work.flops / self.flops;
        (ours > 0.0).then(|| minimum_traffic.max(by_operations) / ours)
    }
}

/// [`read`] of a part of the buffers above.
#[inline(always)]
fn read_safe<S: Simd>(s: S, from: *const f32, count: usize) -> f32 {
    // SAFETY: callers pass parts inside the buffers.
    unsafe { read(s, from, count) }
}

/// [`write`] of a part of the buffers above.
#[inline(always)]
fn write_safe<S: Simd>(s: S, to: *mut f32, count: usize, value: f32, stream: bool) {
    // SAFETY: as above; parts are multiples of 64 elements from an aligned start.
    unsafe { write(s, to, count, value, stream) }
}

/// [`triad_part`] of a part of the buffers above.
#[inline(always)]
fn triad_safe<S: Simd>(s: S, to: *mut f32, b: *const f32, c: *const f32, count: usize) {
    // SAFETY: as above.
    unsafe { triad_part(s, to, b, c, count) }
}
