//! Time as a dependency: tests advance a manual clock.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time for timers, and calendar time for what is persisted.
pub trait Clock: Debug + Send + Sync {
    /// Monotonic time since a fixed start.
    fn elapsed(&self) -> Duration;

    /// Unix time in seconds; may jump.
    fn unix_seconds(&self) -> u64;
}

/// The system clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
    }
}

/// A clock that only moves when it is advanced.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanoseconds: AtomicU64,
    unix_start: u64,
}

impl ManualClock {
    /// A clock at zero elapsed time and this Unix time.
    pub fn starting_at(unix_seconds: u64) -> ManualClock {
        ManualClock { nanoseconds: AtomicU64::new(0), unix_start: unix_seconds }
    }

    /// Advances both times.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(by, Ordering::AcqRel);
    }
}

impl Clock for ManualClock {
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Acquire))
    }

    fn unix_seconds(&self) -> u64 {
        self.unix_start.saturating_add(self.elapsed().as_secs())
    }
}
