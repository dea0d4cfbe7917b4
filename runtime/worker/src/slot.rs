//! A slot that one call has claimed, and its requests and answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use lz_core::{KernelError, Reason};

use crate::failure::{self, protocol_error, unavailable};
use crate::message::{Answer, Request};
use crate::protocol;
use crate::running_worker::RunningWorker;
use crate::slots::Submitted;
use crate::supervisor::Supervisor;
use crate::wait::{WaitDeadline, WaitError};
use crate::worker_state::WorkerState;

/// A claimed slot; released on drop.
#[derive(Debug)]
pub(crate) struct SlotGuard<'a> {
    shared: &'a WorkerState,
    supervisor: Arc<Supervisor>,
    pub running: Arc<RunningWorker>,
    number: usize,
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        // In a forked child the slot and its lock belong to the parent.
        if self.supervisor.generation() == crate::fork::generation() {
            self.running.slots.release(self.number);
        }
    }
}

impl<'a> SlotGuard<'a> {
    /// Claims a slot, waiting for a free one. Starts the worker if it is not running.
    pub fn claim(shared: &'a WorkerState) -> Result<SlotGuard<'a>, KernelError> {
        let deadline = shared.options.deadline;
        loop {
            let supervisor = shared.supervisor();
            let start = shared.options.start_deadline;
            let running = supervisor.running(&shared.options, WaitDeadline::new(start));
            let running = running.map_err(|why| why.error(start))?;
            let terminated = || running.process.termination().is_some();
            let claimed = running.slots.claim(WaitDeadline::new(deadline), terminated);
            // A terminated process never frees its slots; retry with the next process.
            if let Some(number) =
                claimed.map_err(|stop| failure::wait_failed(stop, "a slot of the worker", deadline))?
            {
                return Ok(SlotGuard { shared, supervisor, running, number });
            }
        }
    }

    /// The index of a kernel in the handshake. It may change when the worker is restarted.
    pub fn kernel(&self, id: &str, operation: &str) -> Result<u32, KernelError> {
        let found = self.running.handshake.kernels.iter().position(|(i, o)| i == id && o == operation);
        found.map(|number| number as u32).ok_or_else(|| {
            let message = format!("the worker does not provide kernel {id} of {operation}");
            KernelError::because(unavailable(message)).before_writing()
        })
    }

    /// Submits a request and waits for the answer. After an error the worker has been stopped, so that it no longer writes to the memory.
    pub fn request(&self, request: &Request) -> Result<Answer, KernelError> {
        let channel = &self.running.channel;
        if !channel.write(self.number, &request.write()) {
            let message = "the arguments of the call do not fit into one message to the worker";
            return Err(KernelError::at_capacity(message).before_writing());
        }
        let enqueue = |request: &Submitted| channel.submit(request.slot, request.token, request.ticket);
        let start = Instant::now();
        let submitted = self.running.slots.submit(self.number, enqueue);
        // A worker processes requests one at a time, and each has the full deadline.
        let deadline = self.shared.options.deadline;
        let mut wait = WaitDeadline::new(deadline.saturating_mul(submitted.ahead + 1));
        let answered = protocol::answered(submitted.token);
        let mut terminated = false;
        loop {
            let slice = match wait.slice() {
                Ok(slice) => slice,
                Err(WaitError::Expired) => return Err(self.lost(&submitted, failure::hung(deadline))),
                Err(WaitError::Interrupted) => {
                    // The worker may still be running the call, and would write its results to memory that is reused.
                    self.running.stop(&unavailable("its caller was interrupted"));
                    return Err(failure::interrupted());
                }
                Err(WaitError::Forked) => return Err(failure::forked()),
            };
            // The state is read once more after the termination was observed: the last answer may have arrived before it.
            match (
                channel.await_answer(self.number, submitted.token, slice),
                self.running.process.termination(),
            ) {
                (state, _) if state == answered => break,
                (state, _) if state != submitted.token => return Err(self.invalid_answer()),
                (_, Some(termination)) if terminated => {
                    return Err(self.lost(&submitted, failure::terminated(termination)));
                }
                (_, termination) => terminated = termination.is_some(),
            }
        }
        if let Some(telemetry) = &self.shared.options.telemetry {
            telemetry.observe_exchange(start.elapsed());
        }
        let answer = channel.read(self.number).and_then(|bytes| Answer::read(&bytes));
        let answer = answer.ok_or_else(|| self.invalid_answer())?;
        self.running.slots.answered(&submitted);
        self.supervisor.record_success();
        Ok(answer)
    }

    /// Handles the loss of the worker. The failure is attributed to the call that was running; the others were only waiting.
    fn lost(&self, submitted: &Submitted, reason: Reason) -> KernelError {
        let channel = &self.running.channel;
        let has_answer = |one: &Submitted| {
            channel.slot(one.slot).state.load(Ordering::Acquire) == protocol::answered(one.token)
        };
        let running = self.running.slots.was_running(submitted, has_answer);
        let first = self.running.stop(&reason);
        match self.running.stopped() {
            Some(why) if !running => failure::lost_to_another_call(why).before_writing(),
            Some(why) if !first && *why != reason => failure::lost_to_another_call(why),
            _ => self.supervisor.record_loss(&self.shared.options, reason),
        }
    }

    /// Stops a worker that sent an invalid answer.
    pub fn invalid_answer(&self) -> KernelError {
        self.protocol_violation("the worker sent an invalid answer; it was stopped")
    }

    /// Stops a worker that violated the protocol.
    pub fn protocol_violation(&self, message: &str) -> KernelError {
        let reason = protocol_error(message);
        self.running.stop(&reason);
        self.supervisor.record_loss(&self.shared.options, reason)
    }
}
