//! At most so many lines a second, with a burst, and how many were kept back. Time is handed in.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Lets lines through at a rate.
#[derive(Debug)]
pub struct RateLimiter {
    per_second: f64,
    burst: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: f64,
    then: Duration,
    kept_back: u64,
}

impl RateLimiter {
    /// So many a second on the long run, so many at once.
    pub fn new(per_second: u32, burst: u32) -> RateLimiter {
        let burst = f64::from(burst.max(1));
        let state = State { left: burst, then: Duration::ZERO, kept_back: 0 };
        RateLimiter { per_second: f64::from(per_second), burst, state: Mutex::new(state) }
    }

    /// Whether a line may be written now; if so, how many were kept back since the last one.
    pub fn admit(&self, now: Duration) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_sub(state.then).as_secs_f64();
        state.left = (state.left + passed * self.per_second).min(self.burst);
        state.then = state.then.max(now);
        if state.left < 1.0 {
            state.kept_back += 1;
            return None;
        }
        state.left -= 1.0;
        Some(std::mem::take(&mut state.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_rate_and_nothing_is_lost_in_the_count() {
        let limiter = RateLimiter::new(2, 3);
        let at = |milliseconds| limiter.admit(Duration::from_millis(milliseconds));
        assert_eq!([at(0), at(0), at(0), at(0), at(0)], [Some(0), Some(0), Some(0), None, None]);
        assert_eq!(at(499), None);
        assert_eq!(at(500), Some(3));
        assert_eq!(at(500), None);
        assert_eq!([at(60_000), at(60_000), at(60_000), at(60_000)], [Some(1), Some(0), Some(0), None]);
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_for_free() {
        let limiter = RateLimiter::new(1, 1);
        assert_eq!(limiter.admit(Duration::from_secs(10)), Some(0));
        assert_eq!(limiter.admit(Duration::from_secs(5)), None);
        assert_eq!(limiter.admit(Duration::from_secs(10)), None);
        assert_eq!(limiter.admit(Duration::from_secs(11)), Some(2));
    }
}
