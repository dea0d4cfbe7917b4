//! Renders metrics in the OpenMetrics text format, which Prometheus reads. A pure function; the caller serves the text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::metrics::{BOUNDS_NS, FailureCounts, HistogramSnapshot, MetricsSnapshot};

/// The metrics in the OpenMetrics text format.
pub fn render(snapshot: &MetricsSnapshot) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(snapshot.clone())));
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Snapshot(MetricsSnapshot);

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut text = Text { encoder };
        let Snapshot(all) = self;
        // The encoder appends `_total` to the names of counters.
        text.counter("lz_selection", "Number of selections", all.selections)?;
        text.counter("lz_cache_hits", "Selections answered from a cache", all.cache_hits)?;
        text.counter(
            "lz_remembered_hits",
            "Deprecated: lz_cache_hits_by_level with level=thread",
            all.remembered_hits,
        )?;
        let levels = all.cache_hits_by_level;
        let levels = [("thread", levels.thread), ("exact", levels.exact), ("decision", levels.decision)];
        let levels = levels.map(|(level, count)| ([("level", level)], count));
        text.counters("lz_cache_hits_by_level", "Cache hits by level", levels)?;
        text.counter("lz_cache_misses", "Selections that made a new decision", all.cache_misses)?;
        text.counter("lz_refusals", "Selections without an eligible kernel", all.refusals)?;
        text.counter("lz_execution", "Kernel runs", all.executions)?;
        let calls =
            all.calls.iter().map(|one| (labels(&one.operation, &one.kernel, &one.backend), one.count));
        text.counters("lz_kernel_calls", "Calls by operation, kernel and backend", calls)?;
        let FailureCounts { caller, capacity, environment, kernel } = all.failures_by_cause;
        let failures =
            [("caller", caller), ("capacity", capacity), ("environment", environment), ("kernel", kernel)];
        let failures = failures.map(|(cause, count)| ([("cause", cause)], count));
        text.counters("lz_execution_failures", "Failed kernel runs, by cause", failures)?;
        let errors = all.validation_errors.iter().map(|one| ([("code", one.code)], one.count));
        text.counters("lz_validation_errors", "Calls rejected before selection, by reason code", errors)?;
        let fallbacks = all
            .fallbacks
            .iter()
            .map(|one| ([("operation", one.operation.as_str()), ("kernel", one.kernel.as_str())], one.count));
        text.counters("lz_fallback", "Calls run by a fallback kernel, by the kernel that failed", fallbacks)?;
        text.counter("lz_circuit_breaker_opens", "Circuits that opened", all.circuit_openings)?;
        let transitions = all
            .circuit_transitions
            .iter()
            .map(|one| ([("scope", one.scope), ("name", one.name.as_str()), ("to", one.to)], one.count));
        text.counters("lz_circuit_transitions", "Changes of circuits, by the new state", transitions)?;
        text.counter("lz_worker_restarts", "Restarts of worker processes", all.worker_restarts)?;
        let counts = all.verifications;
        let outcomes = [
            ("agreed", counts.agreed),
            ("mismatched", counts.mismatched),
            ("skipped", counts.skipped),
            ("dropped", counts.dropped),
        ];
        let outcomes = outcomes.map(|(outcome, count)| ([("outcome", outcome)], count));
        text.counters(
            "lz_verifications",
            "Calls that were verified with a second kernel, by outcome",
            outcomes,
        )?;
        let mismatches = all.verification_mismatches.iter();
        let mismatches = mismatches
            .map(|one| ([("operation", one.operation.as_str()), ("kernel", one.kernel.as_str())], one.count));
        text.counters(
            "lz_verification_mismatches",
            "Wrong results that verification found, by kernel",
            mismatches,
        )?;
        let hangs = all.kernel_hangs.iter();
        let hangs = hangs
            .map(|one| ([("operation", one.operation.as_str()), ("kernel", one.kernel.as_str())], one.count));
        text.counters("lz_kernel_hangs", "Kernel runs that exceeded the budget of the watchdog", hangs)?;
        let regret = all.estimated_regret.iter();
        let regret = regret.map(|one| ([("operation", one.operation.as_str())], one.seconds));
        text.counters(
            "lz_estimated_regret_seconds",
            "Estimated time lost against the fastest measured kernel",
            regret,
        )?;
        let canaries = all.canaries.iter();
        let canaries =
            canaries.map(|one| ([("kernel", one.kernel.as_str()), ("outcome", one.outcome)], one.count));
        text.counters("lz_canary_calls", "Calls of canaries by kernel version and outcome", canaries)?;
        text.histogram(
            "lz_selection_latency_seconds",
            "Latency of selection, sampled",
            &all.selection_latency,
        )?;
        text.histogram(
            "lz_execution_latency_seconds",
            "Latency of kernel runs, sampled",
            &all.execution_latency,
        )?;
        text.histograms(
            "lz_kernel_latency_seconds",
            "Latency of kernel runs by operation, kernel and backend, sampled",
            all.kernel_latency
                .iter()
                .map(|one| (labels(&one.operation, &one.kernel, &one.backend), &one.latency)),
        )?;
        text.histogram(
            "lz_ipc_latency_seconds",
            "Latency of round trips to worker processes",
            &all.ipc_latency,
        )?;
        text.gauge("lz_active_kernels", "Kernels whose backend is available", all.active_kernels)?;
        text.gauge("lz_cache_size", "Decisions in the cache", all.cache_size)?;
        text.gauge("lz_degradation_level", "Degradation level of the engine", all.degradation_level)
    }
}

fn labels<'a>(operation: &'a str, kernel: &'a str, backend: &'a str) -> [(&'static str, &'a str); 3] {
    [("operation", operation), ("kernel", kernel), ("backend", backend)]
}

struct Text<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Text<'_> {
    fn metric<'m>(
        &'m mut self,
        name: &'m str,
        help: &'m str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'m>, fmt::Error> {
        self.encoder.encode_descriptor(name, help, None, kind)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.metric(name, help, MetricType::Counter)?)
    }

    fn counters<'l, const N: usize, V>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, &'l str); N], V)>,
    ) -> fmt::Result
    where
        ConstCounter<V>: EncodeMetric,
    {
        let mut metric = self.metric(name, help, MetricType::Counter)?;
        values
            .into_iter()
            .try_for_each(|(labels, value)| ConstCounter::new(value).encode(metric.encode_family(&labels)?))
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        ConstGauge::new(value).encode(self.metric(name, help, MetricType::Gauge)?)
    }

    fn histogram(&mut self, name: &str, help: &str, value: &HistogramSnapshot) -> fmt::Result {
        encode(self.metric(name, help, MetricType::Histogram)?, value)
    }

    fn histograms<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, &'l str); N], &'l HistogramSnapshot)>,
    ) -> fmt::Result {
        let mut metric = self.metric(name, help, MetricType::Histogram)?;
        values.into_iter().try_for_each(|(labels, value)| encode(metric.encode_family(&labels)?, value))
    }
}

/// Writes a histogram; one without observations has no cells.
fn encode(mut metric: MetricEncoder<'_>, value: &HistogramSnapshot) -> fmt::Result {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let bounds = BOUNDS_NS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
    let count = |cell: usize| value.cells.get(cell).copied().unwrap_or(0);
    let buckets: Vec<(f64, u64)> = bounds.enumerate().map(|(cell, bound)| (bound, count(cell))).collect();
    metric.encode_histogram::<NoLabelSet>(seconds(value.sum_ns), value.count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::FallbackCount;
    use crate::telemetry::metrics::{
        CallCount, CircuitTransition, Histogram, KernelLatency, ValidationErrors, VerificationCounts,
        VerificationMismatch,
    };
    use std::time::Duration;

    #[test]
    fn exposition_format_of_all_metrics() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_nanos(200));
        histogram.observe(Duration::from_micros(3));
        let (operation, kernel, backend) = ("norm.rms".to_owned(), "odd\"one".to_owned(), "odd".to_owned());
        let fallback = FallbackCount { operation: operation.clone(), kernel: kernel.clone(), count: 2 };
        let call = CallCount {
            operation: operation.clone(),
            kernel: kernel.clone(),
            backend: backend.clone(),
            count: 11,
        };
        let mismatch =
            VerificationMismatch { operation: operation.clone(), kernel: kernel.clone(), count: 1 };
        let latency = KernelLatency { operation, kernel, backend, latency: histogram.snapshot() };
        let transition =
            CircuitTransition { scope: "kernel", name: "odd\"one".to_owned(), to: "open", count: 1 };
        let snapshot = MetricsSnapshot {
            selections: 10,
            cache_hits: 9,
            remembered_hits: 7,
            cache_misses: 1,
            refusals: 0,
            executions: 11,
            calls: vec![call],
            failures: 2,
            failures_by_cause: FailureCounts { capacity: 1, kernel: 1, ..FailureCounts::default() },
            validation_errors: vec![ValidationErrors { code: "SHAPE_MISMATCH", count: 4 }],
            fallbacks: vec![fallback],
            circuit_openings: 1,
            circuit_transitions: vec![transition],
            verifications: VerificationCounts { agreed: 6, mismatched: 1, skipped: 2, dropped: 3 },
            verification_mismatches: vec![mismatch],
            execution_latency: histogram.snapshot(),
            kernel_latency: vec![latency],
            active_kernels: 5,
            cache_size: 3,
            ..MetricsSnapshot::default()
        };
        insta::assert_snapshot!(render(&snapshot));
    }
}
