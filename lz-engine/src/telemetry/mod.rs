//! Telemetry: what is counted, timed, traced and logged about selection and dispatch.
//!
//! A call that finds what its thread remembers touches nothing here: the thread's own tally says how many there were, and is
//! added up when the thread leaves that path. Spans, logs, timings of each call and synchronisation need the other path, so an
//! engine that is asked for them takes it always. Nothing here decides anything.

mod metrics;
mod prometheus;
mod rate_limit;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use metrics::Metrics;
pub use metrics::{BOUNDS_NS, FailureCounts, FallbackCount, Histogram, HistogramSnapshot, Snapshot};
pub use prometheus::render as prometheus_text;
pub use rate_limit::RateLimiter;

use crate::health::{Clock, SystemClock};
use lz_core::error::Error;
use lz_core::kernel::KernelError;
use lz_core::operation::OperationInfo;

/// Lines of the selection log a second, and at once.
const LINES_A_SECOND: u32 = 10;
const LINES_AT_ONCE: u32 = 50;

/// What an engine is asked to observe of each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watch {
    /// A tracing span for each selection and each run.
    pub spans: bool,
    /// A line in the log for each selection, at a limited rate.
    pub log: bool,
    /// Every fallback is logged, not only the first of its operation and kernel.
    pub verbose: bool,
    /// The device is synchronised after each run, so that an error surfaces where it was made.
    pub synchronise: bool,
    /// One call in so many is timed; 0 for none.
    pub time_every: u32,
}

impl Watch {
    /// Both.
    #[must_use]
    pub fn and(self, other: Watch) -> Watch {
        let often = |every: u32| if every == 0 { u32::MAX } else { every };
        let every = often(self.time_every).min(often(other.time_every));
        Watch {
            spans: self.spans || other.spans,
            log: self.log || other.log,
            verbose: self.verbose || other.verbose,
            synchronise: self.synchronise || other.synchronise,
            time_every: if every == u32::MAX { 0 } else { every },
        }
    }

    /// Whether no call may take the short way.
    pub(crate) fn every_call(self) -> bool {
        self.spans || self.log || self.synchronise || self.time_every == 1
    }

    /// After how many calls on the short way one must take the other.
    pub(crate) fn patience(self, most: u32) -> u32 {
        if self.time_every == 0 { most } else { most.min(self.time_every - 1) }
    }
}

/// Somebody who can wait for a device. Called after each run while `debug` is on.
pub trait Synchronise: Send + Sync {
    /// Waits until everything on the stream is done; an error is that of the call that was made last.
    fn synchronise(&self, stream: usize) -> Result<(), KernelError>;
}

/// What one engine observes and with what.
#[derive(Clone)]
pub(crate) struct Watching {
    /// The engine's own number, by which scopes know it.
    pub engine: u64,
    pub telemetry: Arc<Telemetry>,
    /// What settings ask for, and what calls ask for.
    pub by_settings: Watch,
    pub by_calls: Watch,
    pub synchronise: Option<Arc<dyn Synchronise>>,
}

static NEXT_ENGINE: AtomicU64 = AtomicU64::new(1);

impl Default for Watching {
    fn default() -> Self {
        Watching {
            engine: NEXT_ENGINE.fetch_add(1, Ordering::Relaxed),
            telemetry: Arc::default(),
            by_settings: Watch::default(),
            by_calls: Watch::default(),
            synchronise: None,
        }
    }
}

impl Watching {
    pub fn watch(&self) -> Watch {
        self.by_settings.and(self.by_calls)
    }
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("engine", &self.engine).finish_non_exhaustive()
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
    /// With a clock of its own.
    pub fn new(clock: Arc<dyn Clock>) -> Telemetry {
        Telemetry {
            metrics: Metrics::default(),
            clock,
            selections: RateLimiter::new(LINES_A_SECOND, LINES_AT_ONCE),
        }
    }

    /// Counts the time of an exchange with a worker process.
    pub fn observe_exchange(&self, time: Duration) {
        self.metrics.exchange.observe(time);
    }

    /// Looks for a kernel as the watch says.
    pub(crate) fn select<T>(
        &self,
        watch: Watch,
        operation: &OperationInfo,
        look: impl FnOnce() -> Result<T, Error>,
        kernel: impl FnOnce(&T) -> String,
    ) -> Result<T, Error> {
        let timed = (watch.time_every > 0).then(|| self.clock.elapsed());
        let span = watch.spans.then(|| tracing::debug_span!("lz.select", operation = %operation.name));
        let outcome = match span {
            Some(span) => span.in_scope(look),
            None => look(),
        };
        if let Some(start) = timed {
            self.metrics.selection.observe(self.clock.elapsed().saturating_sub(start));
        }
        match &outcome {
            Ok(found) if watch.log => {
                if let Some(kept_back) = self.selections.admit(self.clock.elapsed()) {
                    let kernel = kernel(found);
                    tracing::info!(operation = %operation.name, kernel, kept_back, "selected");
                }
            }
            Err(_) => {
                self.metrics.refusals.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
        }
        outcome
    }

    /// Runs a kernel as the watch says.
    pub(crate) fn run(
        &self,
        watching: &Watching,
        watch: Watch,
        operation: &OperationInfo,
        kernel: &str,
        run: impl FnOnce() -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let timed = (watch.time_every > 0).then(|| self.clock.elapsed());
        let run = || {
            run()?;
            match &watching.synchronise {
                Some(device) if watch.synchronise => device.synchronise(lz_core::run::stream_of_thread()),
                _ => Ok(()),
            }
        };
        let span =
            watch.spans.then(|| tracing::debug_span!("lz.dispatch", operation = %operation.name, kernel));
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

/// What a thread has counted by itself and not yet told.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Of the thread's short ways, those that were told.
    told: u32,
    pub selections: u32,
    pub executions: u32,
}

/// Selections on the long way after which a thread tells.
const TELL_AFTER: u32 = 64;

impl Tally {
    /// Whether it is time to tell.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.selections >= TELL_AFTER
    }

    /// Tells, and starts anew. `short` is how many short ways there were since it was last set back to 0.
    pub fn tell(&mut self, short: u32, telemetry: &Telemetry) {
        let short_untold = u64::from(short.wrapping_sub(self.told));
        let metrics = &telemetry.metrics;
        let add = |counter: &AtomicU64, count: u64| {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        add(&metrics.remembered, short_untold);
        add(&metrics.selections, short_untold + u64::from(self.selections));
        add(&metrics.executions, short_untold + u64::from(self.executions));
        *self = Tally { told: short, ..Tally::default() };
    }

    /// Says that the count of short ways begins at 0 again; everything has been told.
    pub fn restart(&mut self) {
        self.told = 0;
    }
}
