//! The host's side of a worker: starting it, calling it, and going on when it is gone.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lz_core::descriptor::{self, Catalogue};
use lz_core::{Engine, Error, KernelEntry, KernelError, KernelSpec, OperationInfo, Reason, ReasonCode};

use crate::arena::Arena;
use crate::memory::{self, SharedMemory};
use crate::process::{Ending, Process};
use crate::protocol::{self, CONTROL_BYTES, Channel};
use crate::remote::RemoteKernel;
use crate::slot::LOOK;
/// The first pause after a second failure in a row; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How a worker is run.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Bytes for tensors.
    pub arena_bytes: usize,
    /// How long a call may take.
    pub deadline: Duration,
    /// How long the start may take.
    pub start_deadline: Duration,
    /// The most memory of its own that it may have, in bytes; above that it is stopped.
    pub memory_limit: Option<u64>,
    /// The folder of a control group that it joins.
    pub cgroup: Option<PathBuf>,
    /// Where it runs and who said so, for explanations.
    pub runs_in: String,
}

impl WorkerOptions {
    /// A program with the usual limits: 256 MiB for tensors, 30 seconds a call, a minute to start.
    pub fn new(program: impl Into<PathBuf>) -> WorkerOptions {
        WorkerOptions {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            arena_bytes: 256 << 20,
            deadline: Duration::from_secs(30),
            start_deadline: Duration::from_secs(60),
            memory_limit: None,
            cgroup: None,
            runs_in: "a worker process".to_owned(),
        }
    }

    /// With one more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> WorkerOptions {
        self.arguments.push(argument.into());
        self
    }
}

/// A worker. It is started again when it has ended; clones are the same worker.
#[derive(Debug, Clone)]
pub struct Worker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: WorkerOptions,
    /// Tensors lie here, also while the worker is gone.
    pub(crate) memory: SharedMemory,
    pub(crate) arena: Arena,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Arc<Running>>,
    /// Failures in a row.
    failures: u32,
    not_before: Option<Instant>,
    starts: u64,
}

/// A process and what it is called through.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) channel: Arc<Channel>,
    pub(crate) process: Arc<Process>,
    pub(crate) greeting: Greeting,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// What a worker says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Greeting {
    descriptor: String,
    pub(crate) kernels: Vec<(String, String)>,
}

impl Worker {
    /// Starts a worker.
    pub fn start(options: WorkerOptions) -> Result<Worker, Reason> {
        let worker = Worker::on_demand(options)?;
        worker.shared.running()?;
        Ok(worker)
    }

    /// A worker that is started by its first call.
    pub fn on_demand(options: WorkerOptions) -> Result<Worker, Reason> {
        let memory = SharedMemory::create(options.arena_bytes)
            .map_err(|error| unavailable(format!("there is no shared memory: {error}")))?;
        let arena = Arena::new(0, memory.size());
        Ok(Worker { shared: Arc::new(Shared { options, memory, arena, state: Mutex::default() }) })
    }

    /// The capability descriptor that it gave; empty if it gave none.
    pub fn descriptor(&self) -> Result<String, Reason> {
        Ok(self.shared.running()?.greeting.descriptor.clone())
    }

    /// The kernels that it describes, as a registry takes them.
    pub fn kernels(&self, engine: &Engine) -> Result<Vec<KernelEntry>, Error> {
        let subject = self.shared.options.program.display().to_string();
        let refuse = |reason: Reason| Error::Configuration {
            subject: subject.clone(),
            message: reason.sentence(),
            reasons: vec![reason],
        };
        let running = self.shared.running().map_err(refuse)?;
        let registry = engine.registry();
        let catalogue = Catalogue::new(registry.operations().map(OperationInfo::schema));
        let read = descriptor::read(&subject, &running.greeting.descriptor, &catalogue)?;
        let mut entries = Vec::new();
        for spec in read.kernels {
            let there = |(id, operation): &(String, String)| *id == spec.id && *operation == spec.operation;
            if !running.greeting.kernels.iter().any(there) {
                return Err(refuse(garbage(format!("{} is described but not there", spec.id))));
            }
            let info = registry.operation(&spec.operation).ok_or_else(|| {
                refuse(Reason::new(ReasonCode::OperationUnknown).found(spec.operation.clone()))
            })?;
            entries.push(self.kernel(spec, info));
        }
        Ok(entries)
    }

    /// A kernel that the worker has, or will have once it is started, by a spec that the host knows.
    pub fn kernel(&self, mut spec: KernelSpec, info: &'static OperationInfo) -> KernelEntry {
        spec.runs_in = Some(self.shared.options.runs_in.clone());
        let kernel = RemoteKernel::new(Arc::clone(&self.shared), &spec);
        KernelEntry::new(spec, kernel).of(info)
    }

    /// A tensor in the shared memory: what lies there crosses without a copy. `None` if there is no room.
    pub fn allocate(&self, shape: &[i64], dtype: lz_core::DType) -> Option<crate::tensor::SharedTensor> {
        crate::tensor::SharedTensor::new(Arc::clone(&self.shared), shape, dtype)
    }

    /// The number of its process, while it runs.
    pub fn process_id(&self) -> Option<i32> {
        let state = self.shared.state();
        let running = state.running.as_ref().filter(|running| running.process.ending().is_none());
        running.map(|running| running.process.id())
    }

    /// How often a process was started.
    pub fn starts(&self) -> u64 {
        self.shared.state().starts
    }

    /// Bytes of the shared memory that nothing lies in.
    pub fn free_bytes(&self) -> usize {
        self.shared.arena.free_bytes()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process, started again if it has ended and the pause is over.
    pub(crate) fn running(&self) -> Result<Arc<Running>, Reason> {
        let mut state = self.state();
        if let Some(running) = &state.running
            && running.process.ending().is_none()
        {
            return Ok(Arc::clone(running));
        }
        if let Some(until) = state.not_before
            && Instant::now() < until
        {
            let pause = until.saturating_duration_since(Instant::now()).as_millis();
            return Err(unavailable(format!(
                "the worker has failed {} times in a row and is not started again for {pause} ms",
                state.failures
            )));
        }
        state.running = None;
        state.starts += 1;
        match self.start() {
            Ok(running) => {
                let running = Arc::new(running);
                state.running = Some(Arc::clone(&running));
                Ok(running)
            }
            Err(reason) => {
                state.failed();
                Err(reason)
            }
        }
    }

    fn start(&self) -> Result<Running, Reason> {
        let options = &self.options;
        let control = SharedMemory::create(CONTROL_BYTES).ok().and_then(Channel::new);
        let Some(control) = control else { return Err(unavailable("there is no shared memory".to_owned())) };
        let channel = Arc::new(control);
        channel.header().magic.store(protocol::MAGIC, Ordering::Release);
        let woken = Arc::clone(&channel);
        let ended = move || woken.wake_all();
        let process = Process::start(options, channel.memory.descriptor(), self.memory.descriptor(), ended)
            .map_err(|error| unavailable(format!("{}: {error}", options.program.display())))?;
        let until = Instant::now() + options.start_deadline;
        let state = &channel.header().state;
        while state.load(Ordering::Acquire) == protocol::STARTING {
            if let Some(ending) = process.ending() {
                return Err(unavailable(format!("the worker ended while it started: {}", how(ending))));
            }
            if Instant::now() >= until {
                process.kill();
                return Err(unavailable("the worker did not start in time".to_owned()));
            }
            memory::sleep(state, protocol::STARTING, LOOK);
        }
        let greeting = channel.greeting();
        if state.load(Ordering::Acquire) != protocol::READY {
            process.kill();
            return Err(unavailable(String::from_utf8_lossy(&greeting).into_owned()));
        }
        let Some(greeting) = read_greeting(&greeting) else {
            process.kill();
            return Err(garbage("the worker's greeting cannot be understood".to_owned()));
        };
        Ok(Running { channel, process, greeting })
    }

    /// The worker answered, so what happened before no longer counts.
    pub(crate) fn works(&self) {
        let mut state = self.state();
        state.failures = 0;
        state.not_before = None;
    }

    /// After the worker was lost in the middle of a call.
    pub(crate) fn lost(&self, reason: Reason) -> KernelError {
        self.state().failed();
        tracing::warn!(program = %self.options.program.display(), why = %reason, "a worker was lost");
        KernelError::because(reason)
    }
}

impl State {
    /// The first failure in a row costs nothing but itself; after that each pause is twice as long.
    fn failed(&mut self) {
        self.failures += 1;
        if self.failures > 1 {
            let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 2).min(16));
            self.not_before = Some(Instant::now() + doubled.min(LONGEST_PAUSE));
        }
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

fn unavailable(message: String) -> Reason {
    Reason::new(ReasonCode::WorkerUnavailable).message(message)
}

pub(crate) fn garbage(message: String) -> Reason {
    Reason::new(ReasonCode::WorkerGarbage).message(message)
}

pub(crate) fn ended(ending: &Ending) -> Reason {
    let code = match ending {
        Ending::KilledForMemory | Ending::AboveLimit { .. } => ReasonCode::WorkerOom,
        Ending::Exited(_) | Ending::Signalled(_) => ReasonCode::WorkerCrashed,
    };
    Reason::new(code).message(format!("the worker ended in the middle of the call: {}", how(ending)))
}

fn how(ending: &Ending) -> String {
    match ending {
        Ending::Exited(code) => format!("exit code {code}"),
        Ending::Signalled(libc::SIGSEGV) => "signal 11 (SIGSEGV)".to_owned(),
        Ending::Signalled(libc::SIGABRT) => "signal 6 (SIGABRT)".to_owned(),
        Ending::Signalled(libc::SIGKILL) => "signal 9 (SIGKILL)".to_owned(),
        Ending::Signalled(signal) => format!("signal {signal}"),
        Ending::KilledForMemory => "killed by the system, which was out of memory for it".to_owned(),
        Ending::AboveLimit { bytes, limit } => format!(
            "stopped with {} MiB of memory of its own, more than its limit of {} MiB",
            bytes >> 20,
            limit >> 20
        ),
    }
}
