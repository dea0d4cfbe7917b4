//! Time as a dependency: tests turn the hands themselves.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What time it is, twice: a time that never goes back for waiting, and the calendar's for what outlives the process.
pub trait Clock: Debug + Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn elapsed(&self) -> Duration;

    /// Seconds since 1970; may jump.
    fn unix_seconds(&self) -> u64;
}

/// The machine's own clock.
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

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanoseconds: AtomicU64,
    unix_start: u64,
}

impl ManualClock {
    /// A clock that stands at zero, at the given calendar time.
    pub fn starting_at(unix_seconds: u64) -> ManualClock {
        ManualClock { nanoseconds: AtomicU64::new(0), unix_start: unix_seconds }
    }

    /// Moves both times forward.
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
