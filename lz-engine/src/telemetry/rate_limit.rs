//! A token-bucket rate limiter for log lines that counts suppressed lines. Time is passed in.

use lz_core::fork::Mutex;
use std::time::Duration;

/// A token-bucket rate limiter.
#[derive(Debug)]
pub struct RateLimiter {
    per_second: f64,
    burst: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    last: Duration,
    suppressed: u64,
}

impl RateLimiter {
    /// A sustained rate and a burst size.
    pub fn new(per_second: u32, burst: u32) -> RateLimiter {
        let burst = f64::from(burst.max(1));
        let state = State { tokens: burst, last: Duration::ZERO, suppressed: 0 };
        RateLimiter { per_second: f64::from(per_second), burst, state: Mutex::new(state) }
    }

    /// Whether a line may be written now; if so, the number of lines suppressed since the last one.
    pub fn admit(&self, now: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        let elapsed = now.saturating_sub(state.last).as_secs_f64();
        state.tokens = (state.tokens + elapsed * self.per_second).min(self.burst);
        state.last = state.last.max(now);
        if state.tokens < 1.0 {
            state.suppressed += 1;
            return None;
        }
        state.tokens -= 1.0;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate_with_suppressed_count() {
        let limiter = RateLimiter::new(2, 3);
        let at = |milliseconds| limiter.admit(Duration::from_millis(milliseconds));
        assert_eq!([at(0), at(0), at(0), at(0), at(0)], [Some(0), Some(0), Some(0), None, None]);
        assert_eq!(at(499), None);
        assert_eq!(at(500), Some(3));
        assert_eq!(at(500), None);
        assert_eq!([at(60_000), at(60_000), at(60_000), at(60_000)], [Some(1), Some(0), Some(0), None]);
    }

    #[test]
    fn backward_clock_adds_no_tokens() {
        let limiter = RateLimiter::new(1, 1);
        assert_eq!(limiter.admit(Duration::from_secs(10)), Some(0));
        assert_eq!(limiter.admit(Duration::from_secs(5)), None);
        assert_eq!(limiter.admit(Duration::from_secs(10)), None);
        assert_eq!(limiter.admit(Duration::from_secs(11)), Some(2));
    }
}
