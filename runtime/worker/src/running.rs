//! A worker's process that runs, and what it is called through.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use lz_core::Reason;

use crate::arena::Arena;
use crate::failure::{excerpt, garbage, unavailable};
use crate::memory::{self, SharedMemory};
use crate::options::WorkerOptions;
use crate::patience::{Patience, Stop};
use crate::process::Process;
use crate::protocol::{self, CONTROL_BYTES, Channel};
use crate::slots::Slots;
use crate::supervisor::NotRunning;

/// A process and what it is called through. It is killed when nobody holds this any more.
#[derive(Debug)]
pub(crate) struct Running {
    pub channel: Arc<Channel>,
    pub slots: Slots,
    pub arena: Arc<Arena>,
    pub process: Arc<Process>,
    pub greeting: Greeting,
    /// Why the host stopped it, if it did.
    stopped: OnceLock<Reason>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// What a worker says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Greeting {
    pub descriptor: String,
    pub kernels: Vec<(String, String)>,
}

impl Running {
    /// Starts a process and waits for its greeting.
    pub fn start(
        options: &WorkerOptions,
        arena: Arc<Arena>,
        mut patience: Patience,
    ) -> Result<Running, NotRunning> {
        let refuse = |reason: Reason| NotRunning::Unavailable(reason);
        let control = SharedMemory::create(CONTROL_BYTES).ok().and_then(Channel::new);
        let control = control.ok_or_else(|| refuse(unavailable("there is no shared memory")))?;
        let channel = Arc::new(control);
        channel.header().magic.store(protocol::MAGIC, Ordering::Release);
        let woken = Arc::clone(&channel);
        let ended = move || woken.wake_all();
        let (control, tensors) = (channel.memory.descriptor(), arena.memory().descriptor());
        let process = Process::start(options, control, tensors, ended)
            .map_err(|error| refuse(unavailable(format!("{}: {error}", options.program.display()))))?;
        let state = &channel.header().state;
        // Each word of the memory is read once: the worker may change it between two looks.
        let state = loop {
            match state.load(Ordering::Acquire) {
                protocol::STARTING => {}
                other => break other,
            }
            if let Some(ending) = process.ending() {
                return Err(refuse(unavailable(format!("the worker ended while it started: {ending}"))));
            }
            match patience.slice() {
                Ok(slice) => memory::sleep(state, protocol::STARTING, slice),
                Err(stop) => {
                    process.kill();
                    return Err(match stop {
                        Stop::Expired => refuse(unavailable("the worker did not start in time")),
                        other => NotRunning::Stopped(other),
                    });
                }
            }
        };
        let greeting = channel.greeting();
        let reason = match (state, greeting) {
            (protocol::READY, Some(greeting)) => match read_greeting(&greeting) {
                Some(greeting) => {
                    let (slots, stopped) = (Slots::new(), OnceLock::new());
                    return Ok(Running { channel, slots, arena, process, greeting, stopped });
                }
                None => garbage("the worker's greeting cannot be understood"),
            },
            (protocol::REFUSED, Some(why)) => unavailable(excerpt(&String::from_utf8_lossy(&why))),
            _ => garbage("the worker's greeting cannot be understood"),
        };
        process.kill();
        Err(refuse(reason))
    }

    /// Stops the process. Other calls that it has learn why; whether this was the first to stop it.
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

fn read_greeting(bytes: &[u8]) -> Option<Greeting> {
    let json: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let kernels = json.get("kernels")?.as_array()?.iter().map(|kernel| {
        let text = |at: usize| Some(kernel.get(at)?.as_str()?.to_owned());
        Some((text(0)?, text(1)?))
    });
    let descriptor = json.get("descriptor")?.as_str()?.to_owned();
    Some(Greeting { descriptor, kernels: kernels.collect::<Option<_>>()? })
}
