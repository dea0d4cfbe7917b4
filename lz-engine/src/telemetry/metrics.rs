//! What is counted and how long things take: atomics behind, plain data in front. Nothing here knows an engine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use lz_core::failure::Cause;

/// Upper bounds of the cells of a histogram, in nanoseconds; what is longer falls into a last one without a bound.
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

/// How often which time was seen.
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
    /// Counts one time.
    pub fn observe(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cell = BOUNDS_NS.partition_point(|bound| *bound < ns);
        if let Some(cell) = self.cells.get(cell) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// As data.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let cells: Vec<u64> = self.cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        HistogramSnapshot { count: cells.iter().sum(), sum_ns: self.sum_ns.load(Ordering::Relaxed), cells }
    }
}

/// A histogram as data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct HistogramSnapshot {
    /// How many times were counted.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// How many fell into each cell, by [`BOUNDS_NS`]; the last one has no bound.
    pub cells: Vec<u64>,
}

/// The counters and histograms of one engine.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub selections: AtomicU64,
    pub remembered: AtomicU64,
    pub misses: AtomicU64,
    pub refusals: AtomicU64,
    pub executions: AtomicU64,
    /// By cause, in the order of [`Cause::ALL`].
    failures: [AtomicU64; Cause::ALL.len()],
    pub selection: Histogram,
    pub execution: Histogram,
    pub exchange: Histogram,
    /// By operation and by the kernel that failed.
    fallbacks: Mutex<BTreeMap<(String, String), u64>>,
}

impl Metrics {
    /// Counts a run that failed.
    pub fn failed(&self, cause: Cause) {
        if let Some(counter) = self.failures.get(cause as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs that failed, by cause.
    pub fn failures(&self) -> FailureCounts {
        let [caller, capacity, environment, kernel] =
            self.failures.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        FailureCounts { caller, capacity, environment, kernel }
    }

    /// Counts a fallback, and says whether it is the first of its operation and kernel.
    pub fn fallback(&self, operation: &str, from: &str) -> bool {
        let mut fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let count = fallbacks.entry((operation.to_owned(), from.to_owned())).or_insert(0);
        *count += 1;
        *count == 1
    }

    pub fn fallbacks(&self) -> Vec<FallbackCount> {
        let fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |((operation, kernel), count): (&(String, String), &u64)| FallbackCount {
            operation: operation.clone(),
            kernel: kernel.clone(),
            count: *count,
        };
        fallbacks.iter().map(of).collect()
    }
}

/// How often other kernels did the work of one that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FallbackCount {
    /// The operation.
    pub operation: String,
    /// The kernel that failed.
    pub kernel: String,
    /// How often.
    pub count: u64,
}

/// Runs that failed, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct FailureCounts {
    /// The caller's fault.
    pub caller: u64,
    /// A limited resource was used up.
    pub capacity: u64,
    /// Something that the kernel depends on failed.
    pub environment: u64,
    /// The kernel's fault: what circuits count.
    pub kernel: u64,
}

impl FailureCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.caller + self.capacity + self.environment + self.kernel
    }
}

/// Everything that is counted, at one moment. What another thread's last calls remembered for themselves may be missing
/// until it leaves the fast path or ends.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Snapshot {
    /// Calls for which a kernel was looked for.
    pub selections: u64,
    /// Of these, answered from a kept decision.
    pub cache_hits: u64,
    /// Of these, answered from what the thread itself remembers.
    pub remembered_hits: u64,
    /// Of all, decided afresh.
    pub cache_misses: u64,
    /// Of all, without any kernel that could run the call.
    pub refusals: u64,
    /// Runs of kernels.
    pub executions: u64,
    /// Runs that failed.
    pub failures: u64,
    /// The same by cause.
    pub failures_by_cause: FailureCounts,
    /// Fallbacks by operation and failed kernel.
    pub fallbacks: Vec<FallbackCount>,
    /// Circuits that opened.
    pub circuit_openings: u64,
    /// How long a look for a kernel takes, where it was timed.
    pub selection_latency: HistogramSnapshot,
    /// How long a kernel runs, where it was timed. On a device this is the launch, unless calls are synchronised.
    pub execution_latency: HistogramSnapshot,
    /// How long an exchange with a worker process takes.
    pub ipc_latency: HistogramSnapshot,
    /// Kernels whose backend can be used.
    pub active_kernels: u64,
    /// Decisions that are kept.
    pub cache_size: u64,
    /// How far the engine has stepped back, from 0.
    pub degradation_level: u64,
}

impl Snapshot {
    /// All fallbacks.
    pub fn fallbacks_total(&self) -> u64 {
        self.fallbacks.iter().map(|fallback| fallback.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_the_cell_that_ends_at_them() {
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
