//! A slot of a worker that one call has for itself, and the requests and answers that go through it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lz_core::{KernelError, Reason};

use crate::failure::{self, garbage, unavailable};
use crate::host::Shared;
use crate::message::{Answer, Request};
use crate::patience::{Patience, Stop};
use crate::protocol;
use crate::running::Running;
use crate::slots::Submitted;
use crate::supervisor::Supervisor;

/// A slot. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    shared: &'a Shared,
    supervisor: Arc<Supervisor>,
    pub running: Arc<Running>,
    number: usize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // In a forked child the slot is the parent's, and so is the lock.
        if self.supervisor.generation() == crate::fork::generation() {
            self.running.slots.release(self.number);
        }
    }
}

impl<'a> Held<'a> {
    /// A slot of the worker, which is started if it does not run, once one is free.
    pub fn claim(shared: &'a Shared) -> Result<Held<'a>, KernelError> {
        let deadline = shared.options.deadline;
        loop {
            let supervisor = shared.supervisor();
            let start = shared.options.start_deadline;
            let running = supervisor.running(&shared.options, Patience::new(start));
            let running = running.map_err(|why| why.error(start))?;
            let ended = || running.process.ending().is_some();
            let claimed = running.slots.claim(Patience::new(deadline), ended);
            // A process that has ended frees no slots; the next one has all of them.
            if let Some(number) =
                claimed.map_err(|stop| failure::stopped(stop, "a slot of the worker", deadline))?
            {
                return Ok(Held { shared, supervisor, running, number });
            }
        }
    }

    /// The number by which the worker knows a kernel. A worker that was started again may count otherwise.
    pub fn kernel(&self, id: &str, operation: &str) -> Result<u32, KernelError> {
        let found = self.running.greeting.kernels.iter().position(|(i, o)| i == id && o == operation);
        found.map(|number| number as u32).ok_or_else(|| {
            let message = format!("the worker has no kernel {id} of {operation}");
            KernelError::because(unavailable(message)).before_writing()
        })
    }

    /// Submits a request and waits for the answer. After an error the worker is gone, and nobody writes to the memory any more.
    pub fn ask(&self, request: &Request) -> Result<Answer, KernelError> {
        let channel = &self.running.channel;
        if !channel.write(self.number, &request.write()) {
            let message = "the call has too many arguments for one message to a worker";
            return Err(KernelError::at_capacity(message).before_writing());
        }
        let hand_on = |one: &Submitted| channel.submit(one.slot, one.token, one.ticket);
        let submitted = self.running.slots.submit(self.number, hand_on);
        // A worker does one request after the other, and each may take as long as the deadline says.
        let deadline = self.shared.options.deadline;
        let mut patience = Patience::new(deadline.saturating_mul(submitted.ahead + 1));
        let answered = protocol::answered(submitted.token);
        let mut ended = false;
        loop {
            let slice = match patience.slice() {
                Ok(slice) => slice,
                Err(Stop::Expired) => return Err(self.lost(&submitted, failure::hung(deadline))),
                Err(Stop::Interrupted) => {
                    // The worker may be in the middle of the call, and would write its results to memory that is used again.
                    self.running.stop(&unavailable("its caller was interrupted"));
                    return Err(failure::interrupted());
                }
                Err(Stop::Forked) => return Err(failure::forked()),
            };
            // The state is looked at once more after the end was seen: the last answer may have come before it.
            match (channel.await_answer(self.number, submitted.token, slice), self.running.process.ending()) {
                (state, _) if state == answered => break,
                (state, _) if state != submitted.token => return Err(self.nonsense()),
                (_, Some(ending)) if ended => return Err(self.lost(&submitted, failure::ended(ending))),
                (_, ending) => ended = ending.is_some(),
            }
        }
        let answer = channel.read(self.number).and_then(|bytes| Answer::read(&bytes));
        let answer = answer.ok_or_else(|| self.nonsense())?;
        self.running.slots.answered(&submitted);
        self.supervisor.works();
        Ok(answer)
    }

    /// The worker is lost. The call that it was working on is to blame; the others only waited.
    fn lost(&self, submitted: &Submitted, reason: Reason) -> KernelError {
        let channel = &self.running.channel;
        let has_answer = |one: &Submitted| {
            channel.slot(one.slot).state.load(Ordering::Acquire) == protocol::answered(one.token)
        };
        let running = self.running.slots.was_running(submitted, has_answer);
        let first = self.running.stop(&reason);
        match self.running.stopped() {
            Some(why) if !running => failure::beside_another(why).before_writing(),
            Some(why) if !first && *why != reason => failure::beside_another(why),
            _ => self.supervisor.lost(&self.shared.options, reason),
        }
    }

    /// Stops a worker whose answers make no sense.
    pub fn nonsense(&self) -> KernelError {
        self.broken("the worker's answer cannot be understood; it was stopped")
    }

    /// Stops a worker that broke the protocol.
    pub fn broken(&self, message: &str) -> KernelError {
        let reason = garbage(message);
        self.running.stop(&reason);
        self.supervisor.lost(&self.shared.options, reason)
    }
}
