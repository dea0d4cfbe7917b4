//! Counters and latency histograms: atomics inside, plain data for readers. Nothing here depends on the engine.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::multiple::RefMulti;
use dashmap::mapref::one::RefMut;
use lz_core::fork;
use serde::Serialize;

use lz_core::failure::Cause;
use lz_core::spec::KernelSpec;

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

/// Counters that are created on first use, by their labels: the shards of a map take memory in every engine.
#[derive(Debug)]
pub(crate) struct Labeled<K: Eq + std::hash::Hash, V>(OnceLock<DashMap<K, V>>);

impl<K: Eq + std::hash::Hash, V> Default for Labeled<K, V> {
    fn default() -> Self {
        Labeled(OnceLock::new())
    }
}

impl<K: Eq + std::hash::Hash + Ord + Clone, V: Default> Labeled<K, V> {
    /// Updates the value of these labels.
    pub fn update<R>(&self, labels: K, update: impl FnOnce(&mut V) -> R) -> R {
        let _inside = fork::hold();
        update(&mut self.0.get_or_init(DashMap::new).entry(labels).or_default())
    }

    /// The value of these labels, if there is one. A fork is [held](fork::hold) while it is used.
    fn get_mut<Q: Eq + std::hash::Hash + ?Sized>(&self, labels: &Q) -> Option<RefMut<'_, K, V>>
    where
        K: Borrow<Q>,
    {
        self.0.get()?.get_mut(labels)
    }

    /// All values, sorted by their labels.
    pub fn all<T>(&self, read: impl Fn(&V) -> T) -> Vec<(K, T)> {
        let _inside = fork::hold();
        let of = |entry: RefMulti<'_, K, V>| (entry.key().clone(), read(entry.value()));
        let mut all: Vec<(K, T)> = self.0.get().into_iter().flatten().map(of).collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }
}

/// Operation and kernel.
pub(crate) type KernelLabels = (String, String);

/// What is counted for one kernel of one operation.
#[derive(Debug, Default)]
pub(crate) struct KernelMetrics {
    backend: String,
    calls: u64,
    /// Created by the first timed call.
    latency: Option<Box<Histogram>>,
}

/// The counters and histograms of one engine.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub selections: AtomicU64,
    pub thread_cache_hits: AtomicU64,
    pub exact_cache_hits: AtomicU64,
    pub misses: AtomicU64,
    pub refusals: AtomicU64,
    pub executions: AtomicU64,
    pub worker_restarts: AtomicU64,
    /// Verified calls that agreed, that could not be verified, and that were dropped.
    verified: AtomicU64,
    verifications_skipped: AtomicU64,
    verifications_dropped: AtomicU64,
    /// By cause, in the order of [`Cause::ALL`].
    failures: [AtomicU64; Cause::ALL.len()],
    pub selection: Histogram,
    pub execution: Histogram,
    pub exchange: Histogram,
    /// By operation and by the kernel that failed.
    fallbacks: Labeled<KernelLabels, u64>,
    /// By operation and kernel. Nested, so that a known kernel is found without allocating.
    kernels: Labeled<String, BTreeMap<String, KernelMetrics>>,
    /// Wrong results by operation and kernel.
    mismatches: Labeled<KernelLabels, u64>,
    /// Runs that hung, by operation and kernel.
    hangs: Labeled<KernelLabels, u64>,
    /// By scope, name and new state.
    transitions: Labeled<(&'static str, String, &'static str), u64>,
    /// Estimated lost nanoseconds by operation.
    regret: Labeled<String, f64>,
    /// Calls of canaries by kernel version and outcome.
    canaries: Labeled<(String, &'static str), u64>,
}

impl Metrics {
    /// Counts a verified call whose results agreed.
    pub fn verification_agreed(&self) {
        self.verified.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that could not be recorded or repeated.
    pub fn verification_skipped(&self) {
        self.verifications_skipped.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that was dropped because the queue was full.
    pub fn verification_dropped(&self) {
        self.verifications_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a wrong result of a kernel.
    pub fn result_mismatched(&self, operation: &str, kernel: &str) {
        self.mismatches.update((operation.to_owned(), kernel.to_owned()), |count| *count += 1);
    }

    /// Counts a run that hangs.
    pub fn kernel_hung(&self, operation: &str, kernel: &str) {
        self.hangs.update((operation.to_owned(), kernel.to_owned()), |count| *count += 1);
    }

    /// Runs that hung, by operation and kernel.
    pub fn hangs(&self) -> Vec<KernelHang> {
        let all = self.hangs.all(|count| *count).into_iter();
        all.map(|((operation, kernel), count)| KernelHang { operation, kernel, count }).collect()
    }

    /// Verified calls by outcome.
    pub fn verifications(&self) -> VerificationCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        VerificationCounts {
            agreed: load(&self.verified),
            mismatched: self.mismatches.all(|count| *count).iter().map(|(_, count)| count).sum(),
            skipped: load(&self.verifications_skipped),
            dropped: load(&self.verifications_dropped),
        }
    }

    /// Wrong results by operation and kernel.
    pub fn mismatches(&self) -> Vec<VerificationMismatch> {
        let all = self.mismatches.all(|count| *count).into_iter();
        all.map(|((operation, kernel), count)| VerificationMismatch { operation, kernel, count }).collect()
    }

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
        self.fallbacks.update((operation.to_owned(), from.to_owned()), |count| {
            *count += 1;
            *count == 1
        })
    }

    /// Sorted by operation and kernel.
    pub fn fallbacks(&self) -> Vec<FallbackCount> {
        let of = |((operation, kernel), count)| FallbackCount { operation, kernel, count };
        self.fallbacks.all(|count| *count).into_iter().map(of).collect()
    }

    fn kernel(&self, spec: &KernelSpec, update: impl FnOnce(&mut KernelMetrics)) {
        let _inside = fork::hold();
        if let Some(mut kernels) = self.kernels.get_mut(&spec.operation)
            && let Some(metrics) = kernels.get_mut(&spec.id)
        {
            return update(metrics);
        }
        self.kernels.update(spec.operation.clone(), |kernels| {
            let new = || KernelMetrics { backend: spec.backend.clone(), ..KernelMetrics::default() };
            update(kernels.entry(spec.id.clone()).or_insert_with(new));
        });
    }

    /// Counts calls that a kernel ran.
    pub fn called(&self, spec: &KernelSpec, calls: u64) {
        self.kernel(spec, |metrics| metrics.calls += calls);
    }

    /// Counts one run that did not go through the counters of a thread.
    pub fn executed(&self, spec: &KernelSpec) {
        self.executions.fetch_add(1, Ordering::Relaxed);
        self.called(spec, 1);
    }

    /// Records the latency of one run of a kernel.
    pub fn ran(&self, spec: &KernelSpec, time: Duration) {
        self.execution.observe(time);
        self.kernel(spec, |metrics| metrics.latency.get_or_insert_default().observe(time));
    }

    /// Calls and latencies by kernel.
    pub fn kernels(&self) -> (Vec<CallCount>, Vec<KernelLatency>) {
        let read = |kernel: &String, metrics: &KernelMetrics| {
            let latency = metrics.latency.as_ref().map(|latency| latency.snapshot());
            (kernel.clone(), metrics.backend.clone(), metrics.calls, latency)
        };
        let read_all = |kernels: &BTreeMap<String, KernelMetrics>| {
            kernels.iter().map(|(kernel, metrics)| read(kernel, metrics)).collect::<Vec<_>>()
        };
        let (mut calls, mut latencies) = (Vec::new(), Vec::new());
        for (operation, kernels) in self.kernels.all(read_all) {
            for (kernel, backend, count, latency) in kernels {
                latencies.extend(latency.map(|latency| KernelLatency {
                    operation: operation.clone(),
                    kernel: kernel.clone(),
                    backend: backend.clone(),
                    latency,
                }));
                calls.push(CallCount { operation: operation.clone(), kernel, backend, count });
            }
        }
        (calls, latencies)
    }

    /// Counts a new state of a circuit.
    pub fn circuit_changed(&self, scope: &'static str, name: &str, to: &'static str) {
        self.transitions.update((scope, name.to_owned(), to), |count| *count += 1);
    }

    /// Circuit transitions, sorted.
    pub fn transitions(&self) -> Vec<CircuitTransition> {
        let of = |((scope, name, to), count)| CircuitTransition { scope, name, to, count };
        self.transitions.all(|count| *count).into_iter().map(of).collect()
    }

    /// Counts a call of a canary.
    pub fn canary_called(&self, kernel: &str, outcome: &'static str) {
        self.canaries.update((kernel.to_owned(), outcome), |count| *count += 1);
    }

    /// Calls of canaries, sorted.
    pub fn canaries(&self) -> Vec<CanaryCalls> {
        let of = |((kernel, outcome), count)| CanaryCalls { kernel, outcome, count };
        self.canaries.all(|count| *count).into_iter().map(of).collect()
    }

    /// Adds time that calls of an operation lost against the fastest measured kernel.
    pub fn lost(&self, operation: &str, ns: f64) {
        self.regret.update(operation.to_owned(), |total| *total += ns);
    }

    /// Estimated regret by operation.
    pub fn regret(&self) -> Vec<OperationRegret> {
        let of = |(operation, ns)| OperationRegret { operation, seconds: ns / 1e9 };
        self.regret.all(|ns| *ns).into_iter().map(of).collect()
    }
}

/// Number of calls that a kernel ran. Calls of plan handles are not included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallCount {
    /// The operation.
    pub operation: String,
    /// The kernel.
    pub kernel: String,
    /// Its backend.
    pub backend: String,
    /// The count.
    pub count: u64,
}

/// Latency of a kernel, sampled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelLatency {
    /// The operation.
    pub operation: String,
    /// The kernel.
    pub kernel: String,
    /// Its backend.
    pub backend: String,
    /// The latency.
    pub latency: HistogramSnapshot,
}

/// How often a circuit changed to a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CircuitTransition {
    /// `kernel`, `backend` or `device`.
    pub scope: &'static str,
    /// Its name.
    pub name: String,
    /// The new state: `closed`, `open` or `half_open`.
    pub to: &'static str,
    /// The count.
    pub count: u64,
}

/// Number of calls of a canary with one outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CanaryCalls {
    /// The kernel version, `<id>@<version>`.
    pub kernel: String,
    /// `matched`, `mismatched`, `failed` or `not_compared`.
    pub outcome: &'static str,
    /// The count.
    pub count: u64,
}

/// Verified calls by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct VerificationCounts {
    /// Both kernels returned the same results, within the tolerance of the schema.
    pub agreed: u64,
    /// The results differed.
    pub mismatched: u64,
    /// The call could not be recorded, or no second kernel could repeat it.
    pub skipped: u64,
    /// The queue was full.
    pub dropped: u64,
}

/// How often a kernel returned a wrong result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerificationMismatch {
    /// The operation.
    pub operation: String,
    /// The kernel.
    pub kernel: String,
    /// The count.
    pub count: u64,
}

/// How often a run of a kernel exceeded `watchdog_seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelHang {
    /// The operation.
    pub operation: String,
    /// The kernel.
    pub kernel: String,
    /// The count.
    pub count: u64,
}

/// Number of calls that were rejected before selection, by the code of a reason. Process-wide: no engine is involved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ValidationErrors {
    /// The reason code.
    pub code: &'static str,
    /// The count.
    pub count: u64,
}

/// Estimated time that calls of an operation lost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationRegret {
    /// The operation.
    pub operation: String,
    /// The sum over all calls, extrapolated from the timed ones.
    pub seconds: f64,
}

/// Cache hits by level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct HitsByLevel {
    /// In the cache of the calling thread.
    pub thread: u64,
    /// In the shared cache of whole calls.
    pub exact: u64,
    /// In the shared cache of decisions.
    pub decision: u64,
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
    /// Cache hits in the thread cache. Deprecated: `cache_hits_by_level.thread` is the same number.
    pub remembered_hits: u64,
    /// Cache hits by level.
    pub cache_hits_by_level: HitsByLevel,
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
    /// Calls by operation, kernel and backend.
    pub calls: Vec<CallCount>,
    /// Calls rejected before selection, by reason code.
    pub validation_errors: Vec<ValidationErrors>,
    /// Fallbacks by operation and failed kernel.
    pub fallbacks: Vec<FallbackCount>,
    /// Circuits that opened.
    pub circuit_openings: u64,
    /// Changes of circuits by scope, name and new state.
    pub circuit_transitions: Vec<CircuitTransition>,
    /// Restarts of worker processes.
    pub worker_restarts: u64,
    /// Verified calls by outcome.
    pub verifications: VerificationCounts,
    /// Wrong results by operation and kernel, found by verification.
    pub verification_mismatches: Vec<VerificationMismatch>,
    /// Runs that exceeded `watchdog_seconds`, by operation and kernel.
    pub kernel_hangs: Vec<KernelHang>,
    /// Estimated time lost against the fastest measured kernel, by operation; from timed calls.
    pub estimated_regret: Vec<OperationRegret>,
    /// Calls of canaries by kernel version and outcome.
    pub canaries: Vec<CanaryCalls>,
    /// Latency of selection, sampled.
    pub selection_latency: HistogramSnapshot,
    /// Latency of kernel runs, sampled. On a device this is the launch, unless calls are synchronized.
    pub execution_latency: HistogramSnapshot,
    /// Latency of kernel runs by operation, kernel and backend, sampled.
    pub kernel_latency: Vec<KernelLatency>,
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
