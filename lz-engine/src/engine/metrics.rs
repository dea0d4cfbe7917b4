//! What an engine tells of itself: counters, gauges, timings; and who is asked to watch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Engine, Shared};
use crate::registry::BackendState;
use crate::selection::snapshot::{Parts, World};
use crate::selection::thread::{self, Thread};
use crate::telemetry::{self, Snapshot, Synchronise, Telemetry, Watch, Watching};
use lz_core::operation::OperationInfo;
use lz_core::reason::Reason;

impl Engine {
    /// Everything that is counted, now. This thread's own calls are all in it.
    pub fn metrics(&self) -> Snapshot {
        thread::with(Thread::tell_all);
        let world = self.shared.published.load();
        let metrics = &world.watching.telemetry.metrics;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        // Misses first: a hit that is counted in between must not make the difference negative.
        let misses = load(&metrics.misses);
        let selections = load(&metrics.selections).max(misses);
        let failures = metrics.failures();
        let available = |backend: &str| {
            world.registry.backend(backend).is_some_and(|backend| backend.state == BackendState::Available)
        };
        let active = world.registry.kernels().filter(|entry| available(&entry.spec.backend)).count();
        Snapshot {
            selections,
            cache_hits: selections - misses,
            remembered_hits: load(&metrics.remembered),
            cache_misses: misses,
            refusals: load(&metrics.refusals),
            executions: load(&metrics.executions),
            failures: failures.total(),
            failures_by_cause: failures,
            fallbacks: metrics.fallbacks(),
            circuit_openings: world.health.summary().counters.openings,
            selection_latency: metrics.selection.snapshot(),
            execution_latency: metrics.execution.snapshot(),
            ipc_latency: metrics.exchange.snapshot(),
            active_kernels: active as u64,
            cache_size: world.decisions.len() as u64,
            degradation_level: world.level as u64,
        }
    }

    /// The same as the text that Prometheus reads.
    pub fn metrics_text(&self) -> String {
        telemetry::prometheus_text(&self.metrics())
    }

    /// How often a kernel failed and another one did its work.
    pub fn fallbacks(&self) -> u64 {
        let fallbacks = self.telemetry().metrics.fallbacks();
        fallbacks.iter().map(|fallback| fallback.count).sum()
    }

    /// Where observations go, for those who run kernels elsewhere and time the way there.
    pub fn telemetry(&self) -> Arc<Telemetry> {
        Arc::clone(&self.shared.published.load().watching.telemetry)
    }

    /// Asks for observations, besides what settings ask for.
    pub fn watch(&self, watch: Watch) {
        self.shared.change_watching(|watching| Watching { by_calls: watch, ..watching });
    }

    /// Sets who can wait for a device, for `debug`.
    pub fn set_synchronise(&self, synchronise: Option<Arc<dyn Synchronise>>) {
        self.shared.change_watching(|watching| Watching { synchronise, ..watching });
    }
}

impl Shared {
    pub(super) fn change_watching(&self, change: impl FnOnce(Watching) -> Watching) {
        let change = |parts: Parts| Ok(Some(Parts { watching: change(parts.watching.clone()), ..parts }));
        // Watching otherwise cannot fail.
        self.change(change).ok();
    }

    /// Counts a fallback always, and logs it once an operation and kernel.
    pub(super) fn note_fallback(
        &self,
        world: &World,
        operation: &OperationInfo,
        from: &str,
        to: &str,
        reasons: &[Reason],
    ) {
        let first = world.watching.telemetry.metrics.fallback(&operation.name, from);
        if first || world.watch.verbose {
            let why = reasons.first().map(Reason::to_string).unwrap_or_default();
            tracing::warn!(operation = %operation.name, kernel = from, fallback = to, why, "a kernel failed");
        }
    }
}
