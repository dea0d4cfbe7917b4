//! Telemetry: counters, latencies, spans and logs of selection and dispatch.
//!
//! A thread-cache hit does not touch anything here: it decrements the budget of its entry, from which hits are collected on the slow path. Spans,
//! logs, per-call timing and synchronization require the slow path, so enabling them disables the fast path. Nothing here affects
//! decisions.

mod metrics;
mod prometheus;
mod rate_limit;
mod record;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) use metrics::Metrics;
pub use metrics::{
    BOUNDS_NS, CallCount, CanaryCalls, CircuitTransition, FailureCounts, FallbackCount, Histogram,
    HistogramSnapshot, HitsByLevel, KernelLatency, MetricsSnapshot, OperationRegret, ValidationErrors,
};
pub use prometheus::render as prometheus_text;
pub use rate_limit::RateLimiter;
pub use record::Recorder;

use crate::health::{Clock, SystemClock};
use lz_core::error::Error;
use lz_core::kernel::KernelError;
use lz_core::operation::OperationInfo;
use lz_core::spec::KernelSpec;

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
    /// Adds every selection and run to the recording in progress.
    pub record: bool,
    /// Annotates each run for a profiler of the program, see [`Annotate`].
    pub annotate: bool,
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
            record: self.record || other.record,
            annotate: self.annotate || other.annotate,
        }
    }

    /// Whether the fast path is disabled.
    pub(crate) fn every_call(self) -> bool {
        self.spans || self.log || self.synchronize || self.record || self.annotate || self.time_every == 1
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

/// A profiler of the program, which shows each run as a range.
pub trait Annotate: Send + Sync {
    /// Calls `run` once, inside a range with this name.
    fn annotate(&self, name: &str, run: &mut dyn FnMut());
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
    pub annotate: Option<Arc<dyn Annotate>>,
    /// The recording in progress.
    pub recorder: Option<Arc<Recorder>>,
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
            annotate: None,
            recorder: None,
        }
    }
}

impl Observation {
    pub fn options(&self) -> ObserveOptions {
        let options = self.by_settings.and(self.by_calls);
        ObserveOptions {
            record: self.recorder.is_some(),
            annotate: options.annotate && self.annotate.is_some(),
            ..options
        }
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

    /// Counts the restart of a worker process.
    pub fn worker_restarted(&self) {
        self.metrics.worker_restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs a selection under observation.
    pub(crate) fn select<T>(
        &self,
        observation: &Observation,
        options: ObserveOptions,
        operation: &OperationInfo,
        select: impl FnOnce() -> Result<T, Error>,
        kernel: impl Fn(&T) -> String,
    ) -> Result<T, Error> {
        let timed = (options.time_every > 0).then(|| self.clock.elapsed());
        let recorded = observation.recorder.as_ref().map(|recorder| (recorder, Instant::now()));
        let span = options
            .spans
            .then(|| tracing::debug_span!(target: "lz::select", "lz.select", operation = %operation.name));
        let outcome = match span {
            Some(span) => span.in_scope(select),
            None => select(),
        };
        if let Some(start) = timed {
            self.metrics.selection.observe(self.clock.elapsed().saturating_sub(start));
        }
        if let Some((recorder, start)) = recorded {
            let result = match &outcome {
                Ok(found) => ("kernel", kernel(found)),
                Err(error) => ("error", error.to_string()),
            };
            let arguments = vec![("operation", operation.name.to_string()), result];
            recorder.add("select", format!("select {}", operation.name), start, arguments);
        }
        match &outcome {
            Ok(found) if options.log => {
                if let Some(suppressed) = self.selections.admit(self.clock.elapsed()) {
                    let kernel = kernel(found);
                    tracing::info!(target: "lz::select", operation = %operation.name, kernel, suppressed, "selected");
                }
            }
            Err(_) => {
                self.metrics.refusals.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
        }
        outcome
    }

    /// Runs a kernel under observation; returns its latency if it was timed.
    pub(crate) fn run(
        &self,
        observation: &Observation,
        options: ObserveOptions,
        operation: &OperationInfo,
        spec: &KernelSpec,
        run: impl FnOnce() -> Result<(), KernelError>,
    ) -> Result<Option<Duration>, KernelError> {
        let timed = (options.time_every > 0).then(|| self.clock.elapsed());
        let recorded = observation.recorder.as_ref().map(|recorder| (recorder, Instant::now()));
        let synchronized = || {
            run()?;
            match &observation.synchronize {
                Some(device) if options.synchronize => device.synchronize(lz_core::run::stream_of_thread()),
                _ => Ok(()),
            }
        };
        let spanned = || {
            let span = options.spans.then(|| {
                tracing::debug_span!(target: "lz::select", "lz.dispatch", operation = %operation.name, kernel = spec.id, backend = spec.backend)
            });
            match span {
                Some(span) => span.in_scope(synchronized),
                None => synchronized(),
            }
        };
        let outcome = match &observation.annotate {
            Some(profiler) if options.annotate => annotated(&**profiler, operation, spec, spanned),
            _ => spanned(),
        };
        let time = timed.map(|start| self.clock.elapsed().saturating_sub(start));
        if let Some(time) = time {
            self.metrics.ran(spec, time);
        }
        if let Some((recorder, start)) = recorded {
            let mut arguments = vec![
                ("operation", operation.name.to_string()),
                ("kernel", spec.id.clone()),
                ("backend", spec.backend.clone()),
            ];
            arguments.extend(outcome.as_ref().err().map(|error| ("error", error.reason.to_string())));
            recorder.add("dispatch", format!("{}→{}", operation.name, spec.id), start, arguments);
        }
        outcome.map(|()| time)
    }
}

/// Runs a kernel inside a range of a profiler.
fn annotated(
    profiler: &dyn Annotate,
    operation: &OperationInfo,
    spec: &KernelSpec,
    run: impl FnOnce() -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let (mut run, mut outcome) = (Some(run), Ok(()));
    profiler.annotate(&format!("lz:{}→{}", operation.name, spec.id), &mut || {
        if let Some(run) = run.take() {
            outcome = run();
        }
    });
    // A profiler that fails does not prevent the run.
    if let Some(run) = run { run() } else { outcome }
}

/// The unflushed counters of a thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadCounters {
    /// Hits in the shared caches that have been flushed; the thread state counts them.
    flushed: u32,
    pub exact_hits: u32,
    /// Hits in the thread cache that were collected from its entries.
    thread_hits: u32,
    /// Selections on the slow path, and runs that followed them or used a plan handle.
    pub slow_selections: u32,
    pub slow_executions: u32,
    /// Calls by kernel, by its index in the registry of the held snapshot.
    kernels: Vec<u32>,
}

/// Selections of the slow path, and hits in the shared caches, after which a thread flushes. A power of two.
const FLUSH_AFTER: u32 = 64;

impl ThreadCounters {
    /// Whether a flush is due after a hit in the shared caches.
    #[inline(always)]
    pub fn is_due_after_hit(hits: u32) -> bool {
        hits.is_multiple_of(FLUSH_AFTER)
    }

    /// Whether a flush is due after a selection on the slow path.
    pub fn is_due(&self) -> bool {
        self.slow_selections >= FLUSH_AFTER
    }

    /// Counts a call of a kernel.
    #[inline(always)]
    pub fn called(&mut self, kernel: u32) {
        match self.kernels.get_mut(kernel as usize) {
            Some(count) => *count += 1,
            None => self.add(kernel, 1),
        }
    }

    /// Adds the hits of a thread-cache entry.
    pub fn collect(&mut self, kernel: u32, hits: u32) {
        self.thread_hits += hits;
        self.add(kernel, hits);
    }

    #[cold]
    #[inline(never)]
    fn add(&mut self, kernel: u32, calls: u32) {
        let length = self.kernels.len().max(kernel as usize + 1);
        self.kernels.resize(length, 0);
        if let Some(count) = self.kernels.get_mut(kernel as usize) {
            *count += calls;
        }
    }

    /// Flushes the totals; `hits` are those in the shared caches. Does not allocate.
    pub fn flush_totals(&mut self, hits: u32, telemetry: &Telemetry) {
        let metrics = &telemetry.metrics;
        let add = |counter: &AtomicU64, count: u32| {
            if count > 0 {
                counter.fetch_add(u64::from(count), Ordering::Relaxed);
            }
        };
        let all_hits = hits.wrapping_sub(self.flushed) + self.thread_hits;
        add(&metrics.thread_cache_hits, self.thread_hits);
        add(&metrics.exact_cache_hits, self.exact_hits);
        add(&metrics.selections, all_hits + self.slow_selections);
        add(&metrics.executions, all_hits + self.slow_executions);
        let kernels = std::mem::take(&mut self.kernels);
        *self = ThreadCounters { flushed: hits, kernels, ..ThreadCounters::default() };
    }

    /// Flushes the calls by kernel; `called` receives the index of each kernel and its calls.
    pub fn flush_kernels(&mut self, called: impl Fn(u32, u64)) {
        for (kernel, calls) in (0..).zip(&mut self.kernels) {
            if *calls > 0 {
                called(kernel, u64::from(std::mem::take(calls)));
            }
        }
    }

    /// The count of hits in the shared caches restarts at 0; everything has been flushed.
    pub fn restart(&mut self) {
        self.flushed = 0;
    }
}
