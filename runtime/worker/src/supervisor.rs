//! Starts a worker process and restarts it after a loss, with exponential backoff after repeated failures. A supervisor belongs to one
//! process; a forked child creates its own.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lz_core::{KernelError, Reason};

use crate::arena::Arena;
use crate::failure::unavailable;
use crate::fork;
use crate::options::WorkerOptions;
use crate::running_worker::{NotRunning, RunningWorker};
use crate::wait::{WaitDeadline, WaitError};

/// Restart backoff after the second consecutive failure; it doubles with each further failure.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum restart backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Supervisor {
    generation: u64,
    state: Mutex<State>,
    /// Notified when a start succeeds or fails.
    start_finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Arc<RunningWorker>>,
    /// Whether a thread is starting a process, without holding the lock.
    starting: bool,
    /// The arena of the next process. Each process has its own, so that earlier processes cannot access it.
    arena: Option<Arc<Arena>>,
    /// Consecutive failures.
    failures: u32,
    backoff_until: Option<Instant>,
    starts: u64,
}

impl Supervisor {
    pub fn new() -> Supervisor {
        let (state, start_finished) = (Mutex::default(), Condvar::new());
        Supervisor { generation: fork::generation(), state, start_finished }
    }

    /// The fork generation of the process that it belongs to.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The arena of the running process, or of the next one.
    pub fn arena(&self, options: &WorkerOptions) -> io::Result<Arc<Arena>> {
        let mut state = self.state();
        match state.alive() {
            Some(running) => Ok(Arc::clone(&running.arena)),
            None => state.next_arena(options),
        }
    }

    /// The running process, restarted if it has terminated and the backoff has elapsed.
    pub fn running(
        &self,
        options: &WorkerOptions,
        mut wait: WaitDeadline,
    ) -> Result<Arc<RunningWorker>, NotRunning> {
        let mut state = self.state();
        loop {
            if let Some(running) = state.alive() {
                return Ok(running);
            }
            if !state.starting {
                break;
            }
            drop(state);
            // Without the lock: the interrupt check may run code of the caller.
            let slice = wait.slice().map_err(NotRunning::Stopped)?;
            state = self.state();
            if state.starting {
                state =
                    self.start_finished.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        if let Some(until) = state.backoff_until
            && Instant::now() < until
        {
            let pause = until.saturating_duration_since(Instant::now()).as_millis();
            return Err(NotRunning::Unavailable(unavailable(format!(
                "the worker has failed {} consecutive times; it is not restarted for another {pause} ms",
                state.failures
            ))));
        }
        let arena = state.next_arena(options).map_err(|error| {
            NotRunning::Unavailable(unavailable(format!(
                "cannot create shared memory for the worker: {error}"
            )))
        })?;
        // The previous process is killed without the lock, because that may take a moment.
        let last = state.running.take();
        state.arena = None;
        state.starting = true;
        state.starts += 1;
        if let (Some(telemetry), true) = (&options.telemetry, state.starts > 1) {
            telemetry.worker_restarted();
        }
        drop(state);
        drop(last);
        let outcome = RunningWorker::start(options, arena, WaitDeadline::new(options.start_deadline));
        if self.generation != fork::generation() {
            // A signal handler forked in the meantime: the process and the lock belong to the parent.
            return Err(NotRunning::Stopped(WaitError::Forked));
        }
        let mut state = self.state();
        state.starting = false;
        let outcome = outcome.map(Arc::new);
        match &outcome {
            Ok(running) => state.running = Some(Arc::clone(running)),
            Err(NotRunning::Unavailable(_)) => state.record_failure(),
            // Not a failure of the worker.
            Err(NotRunning::Stopped(_)) => {}
        }
        drop(state);
        self.start_finished.notify_all();
        outcome
    }

    /// Records an answer: resets the failure count and the backoff.
    pub fn record_success(&self) {
        let mut state = self.state();
        state.failures = 0;
        state.backoff_until = None;
    }

    /// Records the loss of the worker through its own fault.
    pub fn record_loss(&self, options: &WorkerOptions, reason: Reason) -> KernelError {
        self.state().record_failure();
        tracing::warn!(target: "lz::worker", program = %options.program.display(), why = %reason, "worker lost");
        KernelError::because(reason)
    }

    /// The process id, while it runs.
    pub fn process_id(&self) -> Option<i32> {
        self.state().alive().map(|running| running.process.id())
    }

    /// The number of starts.
    pub fn starts(&self) -> u64 {
        self.state().starts
    }
}

impl State {
    fn alive(&self) -> Option<Arc<RunningWorker>> {
        let running = self.running.as_ref().filter(|running| running.process.termination().is_none());
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

    /// Counts a failure. There is no backoff after the first consecutive failure; after that it doubles each time.
    fn record_failure(&mut self) {
        self.failures += 1;
        if self.failures > 1 {
            let doubled = MIN_BACKOFF.saturating_mul(1 << (self.failures - 2).min(16));
            self.backoff_until = Some(Instant::now() + doubled.min(MAX_BACKOFF));
        }
    }
}
