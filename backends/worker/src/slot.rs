//! A slot of a worker that one call has for itself, and the questions and answers that go through it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lz_core::{KernelError, Reason, ReasonCode};

use crate::host::{Running, Shared, ended, garbage};
use crate::message::{Answer, Request};
use crate::protocol;

/// How long a waiter sleeps before it looks around.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A slot. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    shared: &'a Shared,
    running: Arc<Running>,
    number: usize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.running.channel.slot(self.number).state.store(protocol::FREE, Ordering::Release);
    }
}

impl<'a> Held<'a> {
    /// A free slot of the worker, which is started if it does not run.
    pub fn claim(shared: &'a Shared) -> Result<Held<'a>, KernelError> {
        let running = shared.running().map_err(|reason| {
            KernelError::because(reason).severity(lz_core::kernel::Severity::Backend).before_writing()
        })?;
        match running.channel.claim() {
            Some(number) => Ok(Held { shared, running, number }),
            None => Err(busy("the worker has no room for another call")),
        }
    }

    /// The number by which the worker knows a kernel. A worker that was started again may count otherwise.
    pub fn kernel(&self, id: &str, operation: &str) -> Result<u32, KernelError> {
        let found = self.running.greeting.kernels.iter().position(|(i, o)| i == id && o == operation);
        found.map(|number| number as u32).ok_or_else(|| {
            let message = format!("the worker has no kernel {id} of {operation}");
            KernelError::because(Reason::new(ReasonCode::WorkerUnavailable).message(message)).before_writing()
        })
    }

    /// Asks and waits for the answer. After an error the worker is gone, and nobody writes to the memory any more.
    pub fn ask(&self, request: &Request) -> Result<Answer, KernelError> {
        let channel = &self.running.channel;
        let slot = channel.slot(self.number);
        if !channel.write(self.number, &request.write()) {
            return Err(busy("the call has too many arguments to cross"));
        }
        channel.submit(self.number);
        let deadline = self.shared.options.deadline;
        let until = Instant::now() + deadline;
        while !channel.await_answer(self.number, LOOK.min(until.saturating_duration_since(Instant::now()))) {
            if let Some(ending) = self.running.process.ending() {
                // It may have answered with its last breath.
                if slot.state.load(Ordering::Acquire) == protocol::DONE {
                    break;
                }
                return Err(self.shared.lost(ended(ending)));
            }
            if Instant::now() >= until {
                self.running.process.kill();
                let reason = Reason::new(ReasonCode::WorkerHung)
                    .required(format!("an answer within {deadline:?}"))
                    .found("none; the worker was stopped");
                return Err(self.shared.lost(reason));
            }
        }
        let Some(answer) = Answer::read(&channel.read(self.number)) else {
            return Err(self.nonsense());
        };
        self.shared.works();
        Ok(answer)
    }

    /// Stops a worker whose answers make no sense.
    pub fn nonsense(&self) -> KernelError {
        self.running.process.kill();
        self.shared.lost(garbage("the worker's answer cannot be understood; it was stopped".to_owned()))
    }
}

fn busy(message: &str) -> KernelError {
    KernelError::failed(message.to_owned()).before_writing()
}
