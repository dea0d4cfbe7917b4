//! Starts a worker's process, and starts it again after it was lost, with pauses when it keeps failing. One supervisor belongs
//! to one process; a forked child makes its own.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lz_core::{KernelError, Reason};

use crate::arena::Arena;
use crate::failure::{self, unavailable};
use crate::fork;
use crate::options::WorkerOptions;
use crate::patience::{Patience, Stop};
use crate::running::Running;

/// The first pause after a second failure in a row; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Supervisor {
    generation: u64,
    state: Mutex<State>,
    /// A start has ended, in either way.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Arc<Running>>,
    /// A thread starts a process, without the lock.
    starting: bool,
    /// For the next process; it gets memory that no process before it has seen.
    arena: Option<Arc<Arena>>,
    /// Failures in a row.
    failures: u32,
    not_before: Option<Instant>,
    starts: u64,
}

/// Why there is no process to call.
#[derive(Debug)]
pub(crate) enum NotRunning {
    /// It cannot be started, or not yet again.
    Unavailable(Reason),
    /// The wait for somebody else's start ended.
    Stopped(Stop),
}

impl NotRunning {
    /// As a failure of a call.
    pub fn error(self, deadline: Duration) -> KernelError {
        match self {
            NotRunning::Unavailable(reason) => failure::not_started(reason),
            NotRunning::Stopped(stop) => {
                failure::stopped(stop, "the worker, which is being started,", deadline)
            }
        }
    }

    /// As a reason, for those who make no call.
    pub fn reason(self) -> Reason {
        match self {
            NotRunning::Unavailable(reason) => reason,
            NotRunning::Stopped(Stop::Expired) => unavailable("the worker did not start in time"),
            NotRunning::Stopped(Stop::Interrupted) => unavailable("its start was interrupted"),
            NotRunning::Stopped(Stop::Forked) => unavailable("the process forked while it started"),
        }
    }
}

impl Supervisor {
    pub fn new() -> Supervisor {
        let (state, settled) = (Mutex::default(), Condvar::new());
        Supervisor { generation: fork::generation(), state, settled }
    }

    /// The process that it belongs to.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shared memory of the present process, or of the next one.
    pub fn arena(&self, options: &WorkerOptions) -> io::Result<Arc<Arena>> {
        let mut state = self.state();
        match state.alive() {
            Some(running) => Ok(Arc::clone(&running.arena)),
            None => state.next_arena(options),
        }
    }

    /// The process, started again if it has ended and the pause is over.
    pub fn running(
        &self,
        options: &WorkerOptions,
        mut patience: Patience,
    ) -> Result<Arc<Running>, NotRunning> {
        let mut state = self.state();
        loop {
            if let Some(running) = state.alive() {
                return Ok(running);
            }
            if !state.starting {
                break;
            }
            drop(state);
            // Without the lock: asking for interrupts may run code of the caller.
            let slice = patience.slice().map_err(NotRunning::Stopped)?;
            state = self.state();
            if state.starting {
                state = self.settled.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        if let Some(until) = state.not_before
            && Instant::now() < until
        {
            let pause = until.saturating_duration_since(Instant::now()).as_millis();
            return Err(NotRunning::Unavailable(unavailable(format!(
                "the worker has failed {} times in a row and is not started again for {pause} ms",
                state.failures
            ))));
        }
        let arena = state.next_arena(options).map_err(|error| {
            NotRunning::Unavailable(unavailable(format!("there is no shared memory: {error}")))
        })?;
        // The last process goes without the lock: killing it may take a moment.
        let last = state.running.take();
        state.arena = None;
        state.starting = true;
        state.starts += 1;
        drop(state);
        drop(last);
        let outcome = Running::start(options, arena, Patience::new(options.start_deadline));
        if self.generation != fork::generation() {
            // A signal handler forked meanwhile: the process is the parent's, and so is the lock.
            return Err(NotRunning::Stopped(Stop::Forked));
        }
        let mut state = self.state();
        state.starting = false;
        let outcome = outcome.map(Arc::new);
        match &outcome {
            Ok(running) => state.running = Some(Arc::clone(running)),
            Err(NotRunning::Unavailable(_)) => state.failed(),
            // Nobody's fault.
            Err(NotRunning::Stopped(_)) => {}
        }
        drop(state);
        self.settled.notify_all();
        outcome
    }

    /// The worker answered, so what happened before no longer counts.
    pub fn works(&self) {
        let mut state = self.state();
        state.failures = 0;
        state.not_before = None;
    }

    /// The worker was lost by its own fault.
    pub fn lost(&self, options: &WorkerOptions, reason: Reason) -> KernelError {
        self.state().failed();
        tracing::warn!(program = %options.program.display(), why = %reason, "a worker was lost");
        KernelError::because(reason)
    }

    /// The number of the process, while it runs.
    pub fn process_id(&self) -> Option<i32> {
        self.state().alive().map(|running| running.process.id())
    }

    /// How often a process was started.
    pub fn starts(&self) -> u64 {
        self.state().starts
    }
}

impl State {
    fn alive(&self) -> Option<Arc<Running>> {
        let running = self.running.as_ref().filter(|running| running.process.ending().is_none());
        running.map(Arc::clone)
    }

    fn next_arena(&mut self, options: &WorkerOptions) -> io::Result<Arc<Arena>> {
        if let Some(arena) = &self.arena {
            return Ok(Arc::clone(arena));
        }
        let arena = Arc::new(Arena::create(options.arena_bytes, options.arena_limit)?);
        self.arena = Some(Arc::clone(&arena));
        Ok(arena)
    }

    /// The first failure in a row costs nothing but itself; after that each pause is twice as long.
    fn failed(&mut self) {
        self.failures += 1;
        if self.failures > 1 {
            let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 2).min(16));
            self.not_before = Some(Instant::now() + doubled.min(LONGEST_PAUSE));
        }
    }
}
