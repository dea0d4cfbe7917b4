//! Renders metrics in the Prometheus text format. A pure function; the caller serves the text.

use std::fmt::Write as _;

use super::metrics::{BOUNDS_NS, FailureCounts, HistogramSnapshot, MetricsSnapshot};

/// The text exposition format, version 0.0.4.
pub fn render(snapshot: &MetricsSnapshot) -> String {
    let mut text = Text(String::new());
    text.counter("lz_selection_total", "Number of selections.", snapshot.selections);
    text.counter("lz_cache_hits_total", "Selections answered from a cache.", snapshot.cache_hits);
    text.counter(
        "lz_remembered_hits_total",
        "Selections answered from the thread cache.",
        snapshot.remembered_hits,
    );
    text.counter("lz_cache_misses_total", "Selections that made a new decision.", snapshot.cache_misses);
    text.counter("lz_refusals_total", "Selections without an eligible kernel.", snapshot.refusals);
    text.counter("lz_execution_total", "Kernel runs.", snapshot.executions);
    text.head("lz_execution_failures_total", "Failed kernel runs, by cause.", "counter");
    let FailureCounts { caller, capacity, environment, kernel } = snapshot.failures_by_cause;
    let failures =
        [("caller", caller), ("capacity", capacity), ("environment", environment), ("kernel", kernel)];
    for (cause, count) in failures {
        text.line(&format!("lz_execution_failures_total{{cause=\"{cause}\"}} {count}"));
    }
    text.head("lz_fallback_total", "Calls run by a fallback kernel, by the kernel that failed.", "counter");
    for fallback in &snapshot.fallbacks {
        let (operation, kernel) = (escaped(&fallback.operation), escaped(&fallback.kernel));
        text.line(&format!(
            "lz_fallback_total{{operation=\"{operation}\",kernel=\"{kernel}\"}} {}",
            fallback.count
        ));
    }
    text.counter("lz_circuit_breaker_opens_total", "Circuits that opened.", snapshot.circuit_openings);
    text.histogram(
        "lz_selection_latency_seconds",
        "Latency of selection, sampled.",
        &snapshot.selection_latency,
    );
    text.histogram(
        "lz_execution_latency_seconds",
        "Latency of kernel runs, sampled.",
        &snapshot.execution_latency,
    );
    text.histogram(
        "lz_ipc_latency_seconds",
        "Latency of round trips to worker processes.",
        &snapshot.ipc_latency,
    );
    text.gauge("lz_active_kernels", "Kernels whose backend is available.", snapshot.active_kernels);
    text.gauge("lz_cache_size", "Decisions in the cache.", snapshot.cache_size);
    text.gauge("lz_degradation_level", "Degradation level of the engine.", snapshot.degradation_level);
    text.0
}

struct Text(String);

impl Text {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.line(&format!("# HELP {name} {help}"));
        self.line(&format!("# TYPE {name} {kind}"));
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.line(&format!("{name} {value}"));
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "gauge");
        self.line(&format!("{name} {value}"));
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &HistogramSnapshot) {
        self.head(name, help, "histogram");
        let mut below = 0;
        for (bound, cell) in BOUNDS_NS.iter().zip(&histogram.cells) {
            below += cell;
            self.line(&format!("{name}_bucket{{le=\"{}\"}} {below}", seconds(*bound)));
        }
        self.line(&format!("{name}_bucket{{le=\"+Inf\"}} {}", histogram.count));
        self.line(&format!("{name}_sum {}", seconds(histogram.sum_ns)));
        self.line(&format!("{name}_count {}", histogram.count));
    }
}

/// Converts nanoseconds to decimal seconds without rounding.
fn seconds(ns: u64) -> String {
    let mut text = String::new();
    let (whole, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    // Writing into a string cannot fail.
    let _ = if rest == 0 { write!(text, "{whole}") } else { write!(text, "{whole}.{rest:09}") };
    if rest != 0 {
        text.truncate(text.trim_end_matches('0').len());
    }
    text
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::FallbackCount;
    use crate::telemetry::metrics::Histogram;
    use std::time::Duration;

    #[test]
    fn nanoseconds_convert_exactly() {
        let of = [0, 1, 100, 1_500_000_000, 2_000_000_000].map(seconds);
        assert_eq!(of, ["0", "0.000000001", "0.0000001", "1.5", "2"]);
    }

    #[test]
    fn exposition_format_of_all_metrics() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_nanos(200));
        histogram.observe(Duration::from_micros(3));
        let fallback =
            FallbackCount { operation: "norm.rms".to_owned(), kernel: "odd\"one".to_owned(), count: 2 };
        let snapshot = MetricsSnapshot {
            selections: 10,
            cache_hits: 9,
            remembered_hits: 7,
            cache_misses: 1,
            refusals: 0,
            executions: 11,
            failures: 2,
            failures_by_cause: FailureCounts { capacity: 1, kernel: 1, ..FailureCounts::default() },
            fallbacks: vec![fallback],
            circuit_openings: 1,
            execution_latency: histogram.snapshot(),
            active_kernels: 5,
            cache_size: 3,
            ..MetricsSnapshot::default()
        };
        insta::assert_snapshot!(render(&snapshot));
    }
}
