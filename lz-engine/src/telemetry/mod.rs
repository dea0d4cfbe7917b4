//! Telemetry: counters, latencies, spans and logs of selection and dispatch.
//!
//! A thread-cache hit does not touch anything here: it increments a counter of the thread, which is flushed on the slow path. Spans,
//! logs, per-call timing and synchronization require the slow path, so enabling them disables the fast path. Nothing here affects
//! decisions.

mod metrics;
mod prometheus;
mod rate_limit;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use metrics::Metrics;
pub use metrics::{BOUNDS_NS, FailureCounts, FallbackCount, Histogram, HistogramSnapshot, MetricsSnapshot};
pub use prometheus::render as prometheus_text;
pub use rate_limit::RateLimiter;

use crate::health::{Clock, SystemClock};
use lz_core::error::Error;
use lz_core::kernel::KernelError;
use lz_core::operation::OperationInfo;

/// Rate and burst of the selection log, in lines per second and lines.
const LOG_LINES_PER_SECOND: u32 = 10;
const LOG_BURST: u32 = 50;

/// What is observed of each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObserveOptions {
    /// A tracing span for each selection and each run.
    pub spans: bool,
    /// A log line per selection, rate-limited.
    pub log: bool,
    /// Logs every fallback, not only the first per operation and kernel.
    pub verbose: bool,
    /// Synchronizes the device after each run, so that errors surface at the call that caused them.
    pub synchronize: bool,
    /// Times one call in this many; 0 for none.
    pub time_every: u32,
}

impl ObserveOptions {
    /// The union of both.
    #[must_use]
    pub fn and(self, other: ObserveOptions) -> ObserveOptions {
        let often = |every: u32| if every == 0 { u32::MAX } else { every };
        let every = often(self.time_every).min(often(other.time_every));
        ObserveOptions {
            spans: self.spans || other.spans,
            log: self.log || other.log,
            verbose: self.verbose || other.verbose,
            synchronize: self.synchronize || other.synchronize,
            time_every: if every == u32::MAX { 0 } else { every },
        }
    }

    /// Whether the fast path is disabled.
    pub(crate) fn every_call(self) -> bool {
        self.spans || self.log || self.synchronize || self.time_every == 1
    }

    /// Number of consecutive fast-path hits after which a call must take the slow path.
    pub(crate) fn hit_budget(self, max: u32) -> u32 {
        if self.time_every == 0 { max } else { max.min(self.time_every - 1) }
    }
}

/// Device synchronization. Called after each run while `debug` is on.
pub trait Synchronize: Send + Sync {
    /// Waits until all work on the stream is done; an error is attributed to the last call.
    fn synchronize(&self, stream: usize) -> Result<(), KernelError>;
}

/// The observation of one engine.
#[derive(Clone)]
pub(crate) struct Observation {
    /// The engine's id, which scopes refer to.
    pub engine: u64,
    pub telemetry: Arc<Telemetry>,
    /// Observation enabled by settings, and by API calls.
    pub by_settings: ObserveOptions,
    pub by_calls: ObserveOptions,
    pub synchronize: Option<Arc<dyn Synchronize>>,
}

static NEXT_ENGINE: AtomicU64 = AtomicU64::new(1);

impl Default for Observation {
    fn default() -> Self {
        Observation {
            engine: NEXT_ENGINE.fetch_add(1, Ordering::Relaxed),
            telemetry: Arc::default(),
            by_settings: ObserveOptions::default(),
            by_calls: ObserveOptions::default(),
            synchronize: None,
        }
    }
}

impl Observation {
    pub fn options(&self) -> ObserveOptions {
        self.by_settings.and(self.by_calls)
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// The telemetry of one engine.
#[derive(Debug)]
pub struct Telemetry {
    pub(crate) metrics: Metrics,
    clock: Arc<dyn Clock>,
    selections: RateLimiter,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry::new(Arc::new(SystemClock::default()))
    }
}

impl Telemetry {
    /// With this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Telemetry {
        Telemetry {
            metrics: Metrics::default(),
            clock,
            selections: RateLimiter::new(LOG_LINES_PER_SECOND, LOG_BURST),
        }
    }

    /// Records the latency of a round trip to a worker process.
    pub fn observe_exchange(&self, time: Duration) {
        self.metrics.exchange.observe(time);
    }

    /// Runs a selection under observation.
    pub(crate) fn select<T>(
        &self,
        options: ObserveOptions,
        operation: &OperationInfo,
        select: impl FnOnce() -> Result<T, Error>,
        kernel: impl FnOnce(&T) -> String,
    ) -> Result<T, Error> {
        let timed = (options.time_every > 0).then(|| self.clock.elapsed());
        let span = options.spans.then(|| tracing::debug_span!("lz.select", operation = %operation.name));
        let outcome = match span {
            Some(span) => span.in_scope(select),
            None => select(),
        };
        if let Some(start) = timed {
            self.metrics.selection.observe(self.clock.elapsed().saturating_sub(start));
        }
        match &outcome {
            Ok(found) if options.log => {
                if let Some(suppressed) = self.selections.admit(self.clock.elapsed()) {
                    let kernel = kernel(found);
                    tracing::info!(operation = %operation.name, kernel, suppressed, "selected");
                }
            }
            Err(_) => {
                self.metrics.refusals.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
        }
        outcome
    }

    /// Runs a kernel under observation.
    pub(crate) fn run(
        &self,
        observation: &Observation,
        options: ObserveOptions,
        operation: &OperationInfo,
        kernel: &str,
        run: impl FnOnce() -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let timed = (options.time_every > 0).then(|| self.clock.elapsed());
        let run = || {
            run()?;
            match &observation.synchronize {
                Some(device) if options.synchronize => device.synchronize(lz_core::run::stream_of_thread()),
                _ => Ok(()),
            }
        };
        let span =
            options.spans.then(|| tracing::debug_span!("lz.dispatch", operation = %operation.name, kernel));
        let outcome = match span {
            Some(span) => span.in_scope(run),
            None => run(),
        };
        if let Some(start) = timed {
            self.metrics.execution.observe(self.clock.elapsed().saturating_sub(start));
        }
        outcome
    }
}

/// The unflushed counters of a thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadCounters {
    /// Fast-path hits that have been flushed.
    flushed: u32,
    pub selections: u32,
    pub executions: u32,
}

/// Slow-path selections after which a thread flushes.
const FLUSH_AFTER: u32 = 64;

impl ThreadCounters {
    /// Whether a flush is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.selections >= FLUSH_AFTER
    }

    /// Flushes and resets the counters. `hits` is the number of fast-path hits since it was last reset to 0.
    pub fn flush(&mut self, hits: u32, telemetry: &Telemetry) {
        let new_hits = u64::from(hits.wrapping_sub(self.flushed));
        let metrics = &telemetry.metrics;
        let add = |counter: &AtomicU64, count: u64| {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        add(&metrics.thread_cache_hits, new_hits);
        add(&metrics.selections, new_hits + u64::from(self.selections));
        add(&metrics.executions, new_hits + u64::from(self.executions));
        *self = ThreadCounters { flushed: hits, ..ThreadCounters::default() };
    }

    /// The counter of fast-path hits restarts at 0; everything has been flushed.
    pub fn restart(&mut self) {
        self.flushed = 0;
    }
}
