//! Kernels with faults, in the serving process and in its worker.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::fork::Mutex;
use lz_core::{Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OutArg, Run, Tensor};
use lz_worker::serve::{WorkerKernels, serve};

use crate::random::Random;

/// The environment variable with the seed of a worker.
pub const SEED_VARIABLE: &str = "LZ_CHAOS_SEED";
/// The environment variable with the name of a file; while it exists, workers inject no faults.
pub const CALM_VARIABLE: &str = "LZ_CHAOS_CALM";

/// A fault of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Returns an error.
    Error,
    /// Declines the call.
    Decline,
    /// Panics.
    Panic,
    /// Reports that memory is exhausted.
    OutOfMemory,
    /// Takes 5 ms longer.
    Slow,
    /// Returns wrong values.
    WrongValues,
    /// Returns a dynamic output of a wrong shape.
    WrongShape,
    /// Overwrites the memory through which a worker answers.
    Garbage,
    /// Raises a signal that ends the process.
    Signal(i32),
    /// Recurses without end.
    StackOverflow,
    /// Never returns.
    Hang,
    /// Allocates without end.
    Memory,
}

/// Faults of a kernel in the serving process.
pub const IN_PROCESS: &[Fault] =
    &[Fault::Error, Fault::Decline, Fault::Panic, Fault::OutOfMemory, Fault::Slow];

/// Faults of a kernel in a worker process, which may end it.
pub const IN_WORKER: &[Fault] = &[
    Fault::Error,
    Fault::Panic,
    Fault::Slow,
    Fault::Signal(libc::SIGSEGV),
    Fault::Signal(libc::SIGILL),
    Fault::Signal(libc::SIGFPE),
    Fault::Signal(libc::SIGABRT),
    Fault::Signal(libc::SIGBUS),
    Fault::Signal(libc::SIGKILL),
    Fault::StackOverflow,
    Fault::Hang,
    Fault::Memory,
    Fault::Garbage,
];

/// How many faults were injected, and whether they are.
#[derive(Debug, Default)]
pub struct Injection {
    /// Faults so far.
    pub count: AtomicU64,
    /// Set at the end, when health must recover.
    pub is_calm: AtomicBool,
}

/// A kernel that computes what another one does, and is faulty once in a while.
pub struct Faulty {
    inner: Arc<dyn Kernel>,
    faults: &'static [Fault],
    every: u64,
    random: Mutex<Random>,
    injection: Arc<Injection>,
    calm_file: Option<std::path::PathBuf>,
}

impl Faulty {
    /// A kernel that is faulty once in `every` calls.
    pub fn new(
        inner: Arc<dyn Kernel>,
        faults: &'static [Fault],
        every: u64,
        random: Random,
        injection: Arc<Injection>,
    ) -> Faulty {
        Faulty { inner, faults, every, random: Mutex::new(random), injection, calm_file: None }
    }

    fn next(&self) -> Option<Fault> {
        let is_calm = self.injection.is_calm.load(Ordering::Relaxed)
            || self.calm_file.as_ref().is_some_and(|file| file.exists());
        let mut random = self.random.lock();
        let fault = (random.once_in(self.every) && !is_calm).then(|| *random.pick(self.faults));
        self.injection.count.fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
        fault
    }
}

impl Kernel for Faulty {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let fault = self.next();
        match fault {
            None | Some(Fault::WrongValues | Fault::WrongShape) => {}
            Some(Fault::Error) => return Err(KernelError::failed("an injected error")),
            Some(Fault::Decline) => return Err(KernelError::declined("an injected decline")),
            Some(Fault::Panic) => panic!("an injected panic"),
            Some(Fault::OutOfMemory) => return Err(KernelError::at_capacity("an injected shortage")),
            Some(Fault::Slow) => std::thread::sleep(Duration::from_millis(5)),
            // SAFETY: the purpose of the fault is to end the process.
            Some(Fault::Signal(signal)) => unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            },
            Some(Fault::StackOverflow) => {
                std::hint::black_box(overflow(0));
            }
            Some(Fault::Hang) => std::thread::sleep(Duration::from_secs(3600)),
            Some(Fault::Memory) => exhaust_memory(),
            Some(Fault::Garbage) => overwrite_answers(),
        }
        self.inner.run(args, outputs, run)?;
        if fault == Some(Fault::WrongValues)
            && let Some(OutArg::Tensor(tensor)) = outputs.first_mut()
            && let Some(first) = tensor.as_slice_mut::<f32>().and_then(|all| all.first_mut())
        {
            *first += 1.0;
        }
        if fault == Some(Fault::WrongShape)
            && let Some(OutArg::Dynamic(tokens)) = outputs.first_mut()
        {
            **tokens = Tensor::zeros(&[3, 1], DType::I32).ok();
        }
        Ok(())
    }
}

#[expect(unconditional_recursion, reason = "the fault")]
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 512]);
    overflow(frame[511] + 1) + frame[0]
}

fn exhaust_memory() {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(std::hint::black_box(vec![1; 8 << 20]));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes random bytes over the control memory of a worker. The arena is left: it has the inputs of other calls.
fn overwrite_answers() {
    let Ok((channel, arena)) = lz_worker::serve::open() else { return };
    let (size, mut random) = (channel.memory.size(), Random::new(1, u64::from(std::process::id())));
    if let Some(start) = channel.memory.at(0, size) {
        for at in 0..size {
            // SAFETY: inside the memory. The race with the host is the fault.
            unsafe { start.wrapping_add(at).write_volatile(random.next() as u8) };
        }
    }
    channel.wake_all();
    // The worker still has both; the host stops this process.
    std::mem::forget((channel, arena));
    std::thread::sleep(Duration::from_secs(3600));
}

/// The reference kernel of an operation.
pub fn reference(operation: &str) -> Arc<dyn Kernel> {
    let kernels = lz_ops::reference_kernels::kernels().into_iter();
    let found = kernels.into_iter().find(|entry| entry.spec.operation == operation);
    Arc::clone(&found.expect("every operation has a reference").kernel)
}

/// The spec of a kernel with faults.
pub fn spec(id: &str, operation: &str, priority: u8) -> KernelSpec {
    let backend = id.split('.').next().unwrap_or(id);
    KernelSpec::new(id, operation, backend, "1", Platform::Cpu).priority(priority)
}

/// The worker process: kernels that end it once in a while.
pub fn serve_worker() -> ExitCode {
    let seed = std::env::var(SEED_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    // The messages of injected panics say nothing.
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = serve(|| {
        let random = Random::new(seed, u64::from(std::process::id()));
        let mut kernel = Faulty::new(reference("norm.rms"), IN_WORKER, 40, random, Arc::default());
        kernel.calm_file = std::env::var_os(CALM_VARIABLE).map(Into::into);
        let entry = KernelEntry::new(spec("far.norm.rms", "norm.rms", 99), kernel).of(&lz_ops::NORM_RMS);
        Ok(WorkerKernels { descriptor: String::new(), kernels: vec![entry] })
    });
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
