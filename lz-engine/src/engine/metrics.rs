//! Observability of an engine: counters, gauges, latencies, and what is observed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Engine, Shared};
use crate::registry::BackendState;
use crate::selection::snapshot::{Snapshot, SnapshotParts};
use crate::selection::thread::{self, Thread};
use crate::telemetry::{
    self, Annotate, HitsByLevel, MetricsSnapshot, Observation, ObserveOptions, Recorder, Synchronize,
    Telemetry, ValidationErrors, Verifier,
};
use lz_core::operation::OperationInfo;
use lz_core::reason::Reason;

impl Engine {
    /// The current metrics, including all calls of this thread.
    pub fn metrics(&self) -> MetricsSnapshot {
        thread::with(Thread::flush_all);
        let snapshot = self.shared.published.load();
        let metrics = &snapshot.observation.telemetry.metrics;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        // Load misses first, so that concurrent hits cannot make the difference negative.
        let misses = load(&metrics.misses);
        let selections = load(&metrics.selections).max(misses);
        let (thread, exact) = (load(&metrics.thread_cache_hits), load(&metrics.exact_cache_hits));
        let failures = metrics.failures();
        let (calls, kernel_latency) = metrics.kernels();
        let available = |backend: &str| {
            snapshot.registry.backend(backend).is_some_and(|backend| backend.state == BackendState::Available)
        };
        let active = snapshot.registry.kernels().filter(|entry| available(&entry.spec.backend)).count();
        MetricsSnapshot {
            selections,
            cache_hits: selections - misses,
            remembered_hits: load(&metrics.thread_cache_hits),
            cache_hits_by_level: HitsByLevel {
                thread,
                exact,
                // Including hits of calls that took the slow path for another reason.
                decision: (selections - misses).saturating_sub(thread + exact),
            },
            cache_misses: misses,
            refusals: load(&metrics.refusals),
            executions: load(&metrics.executions),
            failures: failures.total(),
            failures_by_cause: failures,
            calls,
            validation_errors: validation_errors(),
            fallbacks: metrics.fallbacks(),
            circuit_openings: snapshot.health.summary().counters.openings,
            circuit_transitions: metrics.transitions(),
            worker_restarts: load(&metrics.worker_restarts),
            verifications: metrics.verifications(),
            verification_mismatches: metrics.mismatches(),
            kernel_hangs: metrics.hangs(),
            estimated_regret: metrics.regret(),
            canaries: metrics.canaries(),
            selection_latency: metrics.selection.snapshot(),
            execution_latency: metrics.execution.snapshot(),
            kernel_latency,
            ipc_latency: metrics.exchange.snapshot(),
            active_kernels: active as u64,
            cache_size: snapshot.decisions.len() as u64,
            degradation_level: snapshot.level as u64,
        }
    }

    /// The metrics in the OpenMetrics text format, which Prometheus reads.
    pub fn metrics_text(&self) -> String {
        telemetry::prometheus_text(&self.metrics())
    }

    /// How many calls were run by a fallback kernel.
    pub fn fallbacks(&self) -> u64 {
        let fallbacks = self.telemetry().metrics.fallbacks();
        fallbacks.iter().map(|fallback| fallback.count).sum()
    }

    /// The telemetry sink, for backends that run kernels in other processes and record IPC latency.
    pub fn telemetry(&self) -> Arc<Telemetry> {
        Arc::clone(&self.shared.published.load().observation.telemetry)
    }

    /// Enables observation in addition to what settings enable.
    pub fn observe(&self, options: ObserveOptions) {
        self.shared.change_observation(|observation| Observation { by_calls: options, ..observation });
    }

    /// Starts a recording of selections and runs, which replaces one in progress. Every call takes the slow path meanwhile.
    pub fn start_recording(&self) {
        let recorder = Some(Arc::new(Recorder::default()));
        self.shared.change_observation(|observation| Observation { recorder, ..observation });
    }

    /// Ends the recording and returns it as trace events in JSON; `None` if there is none.
    pub fn stop_recording(&self) -> Option<String> {
        let recorder = self.shared.published.load().observation.recorder.clone()?;
        self.shared.change_observation(|observation| Observation { recorder: None, ..observation });
        Some(recorder.json())
    }

    /// Sets the verifier of sampled calls.
    pub(crate) fn set_verifier(&self, verifier: Arc<dyn Verifier>) {
        let verifier = Some(verifier);
        self.shared.change_observation(|observation| Observation { verifier, ..observation });
    }

    /// Sets the profiler that `telemetry.torch_ranges` uses.
    pub fn set_annotate(&self, annotate: Option<Arc<dyn Annotate>>) {
        self.shared.change_observation(|observation| Observation { annotate, ..observation });
    }

    /// Sets the device synchronization that `debug` uses.
    pub fn set_synchronize(&self, synchronize: Option<Arc<dyn Synchronize>>) {
        self.shared.change_observation(|observation| Observation { synchronize, ..observation });
    }
}

fn validation_errors() -> Vec<ValidationErrors> {
    let counts = lz_core::check::error_counts();
    counts.map(|(code, count)| ValidationErrors { code: code.as_str(), count }).collect()
}

impl Shared {
    pub(super) fn change_observation(&self, change: impl FnOnce(Observation) -> Observation) {
        let change = |parts: SnapshotParts| {
            Ok(Some(SnapshotParts { observation: change(parts.observation.clone()), ..parts }))
        };
        // `change` returns no error.
        self.change(change).ok();
    }

    /// Counts every fallback; logs the first one per operation and kernel.
    pub(super) fn note_fallback(
        &self,
        snapshot: &Snapshot,
        operation: &OperationInfo,
        from: &str,
        to: &str,
        reasons: &[Reason],
    ) {
        let first = snapshot.observation.telemetry.metrics.fallback(&operation.name, from);
        if first || snapshot.observe.verbose {
            let why = reasons.first().map(Reason::to_string).unwrap_or_default();
            tracing::warn!(target: "lz::fallback", operation = %operation.name, kernel = from, fallback = to, why, "kernel failed; used fallback");
        }
    }
}
