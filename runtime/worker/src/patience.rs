//! Waiting with limits. Every wait for a worker ends at a deadline, and wakes up in between to notice signals and forks.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::fork;

/// The longest sleep between two checks.
const SLICE: Duration = Duration::from_millis(50);

/// Whether the caller was interrupted, as the language that embeds the engine knows it.
static INTERRUPTED: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets how a waiting call finds out that its caller was interrupted (Ctrl-C). It is asked on the thread that waits, several
/// times a second; after `true` the call fails and its worker is stopped. The first setting counts.
pub fn set_interrupt_check(check: fn() -> bool) {
    INTERRUPTED.get_or_init(|| check);
}

/// Why a wait ended without what it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The deadline has passed.
    Expired,
    /// The caller was interrupted.
    Interrupted,
    /// The process was forked, and this is the child: what was waited for belongs to the parent.
    Forked,
}

/// The limits of one wait.
#[derive(Debug)]
pub(crate) struct Patience {
    until: Option<Instant>,
    generation: u64,
    /// Whether something was waited for already. Asking for interrupts costs more than a short call.
    begun: bool,
}

impl Patience {
    /// For so long from now. A time that no clock reaches is no limit.
    pub fn new(time: Duration) -> Patience {
        Patience { until: Instant::now().checked_add(time), generation: fork::generation(), begun: false }
    }

    /// How long to sleep before the next check, or why to stop waiting.
    pub fn slice(&mut self) -> Result<Duration, Stop> {
        let begun = std::mem::replace(&mut self.begun, true);
        let interrupted = begun && INTERRUPTED.get().is_some_and(|interrupted| interrupted());
        // Looked at afterwards, because a signal handler may have forked.
        if self.generation != fork::generation() {
            return Err(Stop::Forked);
        }
        if interrupted {
            return Err(Stop::Interrupted);
        }
        let left = self.until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() { Err(Stop::Expired) } else { Ok(left.min(SLICE)) }
    }
}
