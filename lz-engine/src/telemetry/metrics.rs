//! Counters and latency histograms: atomics inside, plain data for readers. Nothing here depends on the engine.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::multiple::RefMulti;
use serde::Serialize;

use lz_core::failure::Cause;

/// Upper bounds of the histogram buckets, in nanoseconds; the last bucket is unbounded.
pub const BOUNDS_NS: [u64; 22] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// A latency histogram.
#[derive(Debug)]
pub struct Histogram {
    cells: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { cells: [const { AtomicU64::new(0) }; BOUNDS_NS.len() + 1], sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Records one observation.
    pub fn observe(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cell = BOUNDS_NS.partition_point(|bound| *bound < ns);
        if let Some(cell) = self.cells.get(cell) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The current values.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let cells: Vec<u64> = self.cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        HistogramSnapshot { count: cells.iter().sum(), sum_ns: self.sum_ns.load(Ordering::Relaxed), cells }
    }
}

/// The values of a histogram.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct HistogramSnapshot {
    /// Number of observations.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Observations per bucket, see [`BOUNDS_NS`]; the last one is unbounded.
    pub cells: Vec<u64>,
}

/// The counters and histograms of one engine.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub selections: AtomicU64,
    pub thread_cache_hits: AtomicU64,
    pub misses: AtomicU64,
    pub refusals: AtomicU64,
    pub executions: AtomicU64,
    /// By cause, in the order of [`Cause::ALL`].
    failures: [AtomicU64; Cause::ALL.len()],
    pub selection: Histogram,
    pub execution: Histogram,
    pub exchange: Histogram,
    /// By operation and by the kernel that failed. Created by the first fallback: its shards take memory in every engine.
    fallbacks: OnceLock<DashMap<(String, String), u64>>,
}

impl Metrics {
    /// Counts a failed run.
    pub fn failed(&self, cause: Cause) {
        if let Some(counter) = self.failures.get(cause as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Failed runs by cause.
    pub fn failures(&self) -> FailureCounts {
        let [caller, capacity, environment, kernel] =
            self.failures.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        FailureCounts { caller, capacity, environment, kernel }
    }

    /// Counts a fallback; returns whether it is the first of its operation and kernel.
    pub fn fallback(&self, operation: &str, from: &str) -> bool {
        let fallbacks = self.fallbacks.get_or_init(DashMap::new);
        let mut count = fallbacks.entry((operation.to_owned(), from.to_owned())).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// Sorted by operation and kernel.
    pub fn fallbacks(&self) -> Vec<FallbackCount> {
        let of = |entry: RefMulti<'_, (String, String), u64>| {
            let (operation, kernel) = entry.key().clone();
            FallbackCount { operation, kernel, count: *entry.value() }
        };
        let mut fallbacks: Vec<FallbackCount> = self.fallbacks.get().into_iter().flatten().map(of).collect();
        fallbacks.sort_unstable_by(|a, b| (&a.operation, &a.kernel).cmp(&(&b.operation, &b.kernel)));
        fallbacks
    }
}

/// Number of fallbacks from a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FallbackCount {
    /// The operation.
    pub operation: String,
    /// The kernel that failed.
    pub kernel: String,
    /// The count.
    pub count: u64,
}

/// Failed runs by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct FailureCounts {
    /// Caused by the caller.
    pub caller: u64,
    /// A limited resource was exhausted.
    pub capacity: u64,
    /// A dependency of the kernel failed.
    pub environment: u64,
    /// Caused by the kernel; circuits count these.
    pub kernel: u64,
}

impl FailureCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.caller + self.capacity + self.environment + self.kernel
    }
}

/// All metrics at one moment. Thread-cache hits of other threads may be missing until those threads flush their
/// counters.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct MetricsSnapshot {
    /// Number of selections.
    pub selections: u64,
    /// Selections answered from a cache.
    pub cache_hits: u64,
    /// Cache hits in the thread cache.
    pub remembered_hits: u64,
    /// Selections that made a new decision.
    pub cache_misses: u64,
    /// Selections without an eligible kernel.
    pub refusals: u64,
    /// Kernel runs.
    pub executions: u64,
    /// Failed kernel runs.
    pub failures: u64,
    /// Failed kernel runs by cause.
    pub failures_by_cause: FailureCounts,
    /// Fallbacks by operation and failed kernel.
    pub fallbacks: Vec<FallbackCount>,
    /// Circuits that opened.
    pub circuit_openings: u64,
    /// Latency of selection, sampled.
    pub selection_latency: HistogramSnapshot,
    /// Latency of kernel runs, sampled. On a device this is the launch, unless calls are synchronized.
    pub execution_latency: HistogramSnapshot,
    /// Latency of round trips to worker processes.
    pub ipc_latency: HistogramSnapshot,
    /// Kernels whose backend is available.
    pub active_kernels: u64,
    /// Decisions in the cache.
    pub cache_size: u64,
    /// The degradation level, from 0.
    pub degradation_level: u64,
}

impl MetricsSnapshot {
    /// All fallbacks.
    pub fn fallbacks_total(&self) -> u64 {
        self.fallbacks.iter().map(|fallback| fallback.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_are_inclusive() {
        let histogram = Histogram::default();
        for ns in [0, 100, 101, 10_000_000_000, 10_000_000_001] {
            histogram.observe(Duration::from_nanos(ns));
        }
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count, snapshot.sum_ns), (5, 20_000_000_202));
        assert_eq!((snapshot.cells[0], snapshot.cells[1]), (2, 1));
        assert_eq!((snapshot.cells[BOUNDS_NS.len() - 1], snapshot.cells[BOUNDS_NS.len()]), (1, 1));
    }
}
