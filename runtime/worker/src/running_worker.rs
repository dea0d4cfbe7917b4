//! A running worker process with its channel, slots and arena.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lz_core::{KernelError, Reason};

use crate::arena::Arena;
use crate::failure::{self, excerpt, protocol_error, unavailable};
use crate::handshake::Handshake;
use crate::memory::{self, SharedMemory};
use crate::options::WorkerOptions;
use crate::process::Process;
use crate::protocol::{self, CONTROL_BYTES, Channel};
use crate::slots::Slots;
use crate::wait::{WaitDeadline, WaitError};

/// A running worker process. It is killed when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct RunningWorker {
    pub channel: Arc<Channel>,
    pub slots: Slots,
    pub arena: Arc<Arena>,
    pub process: Arc<Process>,
    pub handshake: Handshake,
    /// Why the host stopped it, if it did.
    stopped: OnceLock<Reason>,
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// Why there is no running process.
#[derive(Debug)]
pub(crate) enum NotRunning {
    /// It cannot be started, or the restart backoff has not elapsed.
    Unavailable(Reason),
    /// The wait for another thread's start ended.
    Stopped(WaitError),
}

impl NotRunning {
    /// As the error of a call.
    pub fn error(self, deadline: Duration) -> KernelError {
        match self {
            NotRunning::Unavailable(reason) => failure::not_started(reason),
            NotRunning::Stopped(stop) => {
                failure::wait_failed(stop, "the worker, which another thread is starting,", deadline)
            }
        }
    }

    /// As a reason, for operations other than calls.
    pub fn reason(self) -> Reason {
        match self {
            NotRunning::Unavailable(reason) => reason,
            NotRunning::Stopped(WaitError::Expired) => {
                unavailable("the worker did not start within `worker.start_deadline_seconds`")
            }
            NotRunning::Stopped(WaitError::Interrupted) => {
                unavailable("the start of the worker was interrupted")
            }
            NotRunning::Stopped(WaitError::Forked) => {
                unavailable("the process forked during the start of the worker")
            }
        }
    }
}

impl RunningWorker {
    /// Spawns a process and waits for its handshake.
    pub fn start(
        options: &WorkerOptions,
        arena: Arc<Arena>,
        mut wait: WaitDeadline,
    ) -> Result<RunningWorker, NotRunning> {
        let refuse = |reason: Reason| NotRunning::Unavailable(reason);
        let control = SharedMemory::create(CONTROL_BYTES).ok().and_then(Channel::new);
        let control =
            control.ok_or_else(|| refuse(unavailable("cannot create shared memory for the worker")))?;
        let channel = Arc::new(control);
        channel.header().version.store(protocol::VERSION, Ordering::Release);
        channel.header().magic.store(protocol::MAGIC, Ordering::Release);
        let waiters = Arc::clone(&channel);
        let on_termination = move || waiters.wake_all();
        let (control, tensors) = (channel.memory.descriptor(), arena.memory().descriptor());
        let process = Process::start(options, control, tensors, on_termination).map_err(|error| {
            refuse(unavailable(format!("cannot start {}: {error}", options.program.display())))
        })?;
        let state = &channel.header().state;
        // Each word of the memory is read once: the worker may change it between two reads.
        let state = loop {
            match state.load(Ordering::Acquire) {
                protocol::STARTING => {}
                other => break other,
            }
            if let Some(termination) = process.termination() {
                return Err(refuse(unavailable(format!(
                    "the worker terminated during its start: {termination}"
                ))));
            }
            match wait.slice() {
                Ok(slice) => memory::futex_wait(state, protocol::STARTING, slice),
                Err(stop) => {
                    process.kill();
                    return Err(match stop {
                        WaitError::Expired => refuse(unavailable(
                            "the worker did not start within `worker.start_deadline_seconds`",
                        )),
                        other => NotRunning::Stopped(other),
                    });
                }
            }
        };
        let handshake = channel.handshake();
        let reason = match (state, handshake) {
            (protocol::READY, Some(handshake)) => match Handshake::read(&handshake) {
                Some(handshake) => {
                    let (slots, stopped) = (Slots::new(), OnceLock::new());
                    return Ok(RunningWorker { channel, slots, arena, process, handshake, stopped });
                }
                None => {
                    protocol_error("the worker's handshake is not valid JSON with `descriptor` and `kernels`")
                }
            },
            (protocol::REFUSED, Some(why)) => unavailable(excerpt(&String::from_utf8_lossy(&why))),
            _ => protocol_error("the worker's handshake has an invalid state or size"),
        };
        process.kill();
        Err(refuse(reason))
    }

    /// Stops the process and records the reason for its other calls. Returns whether this call was the first to stop it.
    pub fn stop(&self, why: &Reason) -> bool {
        let first = self.stopped.set(why.clone()).is_ok();
        self.process.kill();
        first
    }

    /// Why the host stopped the process, if it did.
    pub fn stopped(&self) -> Option<&Reason> {
        self.stopped.get()
    }
}
