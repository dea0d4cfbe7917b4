//! Waits with a deadline. Every wait for a worker ends at its deadline, and wakes up in between to check for interrupts and forks.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::fork;

/// Maximum sleep between two checks.
const SLICE: Duration = Duration::from_millis(50);

/// The interrupt check of the embedding language.
static INTERRUPT_CHECK: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the check by which a waiting call detects that its caller was interrupted (Ctrl-C). It runs on the waiting thread, several times
/// a second. If it returns `true`, the call fails and its worker is stopped. Only the first call of this function has an effect.
pub fn set_interrupt_check(check: fn() -> bool) {
    INTERRUPT_CHECK.get_or_init(|| check);
}

/// Why a wait ended without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// The deadline has passed.
    Expired,
    /// The caller was interrupted.
    Interrupted,
    /// The process forked, and this is the child: the resource belongs to the parent.
    Forked,
}

/// The deadline of one wait.
#[derive(Debug)]
pub(crate) struct WaitDeadline {
    until: Option<Instant>,
    generation: u64,
    /// Whether the first slice has passed. The interrupt check costs more than a short call, so the first slice skips it.
    started: bool,
}

impl WaitDeadline {
    /// A deadline after `time` from now; none if it is not representable.
    pub fn new(time: Duration) -> WaitDeadline {
        WaitDeadline {
            until: Instant::now().checked_add(time),
            generation: fork::generation(),
            started: false,
        }
    }

    /// How long to sleep until the next check, or why to stop waiting.
    pub fn slice(&mut self) -> Result<Duration, WaitError> {
        let started = std::mem::replace(&mut self.started, true);
        let interrupted = started && INTERRUPT_CHECK.get().is_some_and(|check| check());
        // Checked afterwards, because a signal handler may have forked.
        if self.generation != fork::generation() {
            return Err(WaitError::Forked);
        }
        if interrupted {
            return Err(WaitError::Interrupted);
        }
        let left = self.until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() { Err(WaitError::Expired) } else { Ok(left.min(SLICE)) }
    }
}
