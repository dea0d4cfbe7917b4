//! Failures: failing kernels, lost devices, invalid files, corrupted databases, killed processes.

mod breaking;
mod circuits;
mod database;
mod files;
mod locks;
mod restarts;
mod tuning;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lz_core::{KernelEntry, KernelError, KernelSpec};
use lz_engine::Engine;
use lz_engine::health::{Health, HealthConfig, ManualClock};
use lz_ops::NORM_RMS;
use lz_scenarios::engines::{host_spec, register};
use lz_scenarios::kernels::{kernel_fn, noop_kernel};

/// Path of the second process.
const OTHER_PROCESS: &str = env!("CARGO_BIN_EXE_other-process");

/// A host engine with a manual clock.
fn engine_with_manual_clock(entries: impl IntoIterator<Item = KernelEntry>) -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::starting_at(2_000_000_000));
    let engine = Engine::with_health(Arc::new(Health::new(HealthConfig::default(), clock.clone())));
    register(&engine, entries);
    (engine, clock)
}

/// A kernel that fails until it is repaired, with a call counter.
struct FlakyKernel {
    broken: Arc<AtomicU32>,
    calls: Arc<AtomicU32>,
}

impl FlakyKernel {
    fn new() -> FlakyKernel {
        FlakyKernel { broken: Arc::new(AtomicU32::new(1)), calls: Arc::new(AtomicU32::new(0)) }
    }

    fn repair(&self) {
        self.broken.store(0, Ordering::SeqCst);
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    fn entry(&self, spec: KernelSpec) -> KernelEntry {
        let (broken, calls) = (Arc::clone(&self.broken), Arc::clone(&self.calls));
        kernel_fn(spec, &NORM_RMS, move || {
            calls.fetch_add(1, Ordering::SeqCst);
            if broken.load(Ordering::SeqCst) == 1 {
                Err(KernelError::failed("a launch failure"))
            } else {
                Ok(())
            }
        })
    }
}

/// `good.x`, which always succeeds.
fn good() -> KernelEntry {
    noop_kernel(host_spec("good.x"), &NORM_RMS)
}

/// `bad.x`, with a higher priority, which runs the closure.
fn bad(body: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static) -> KernelEntry {
    kernel_fn(host_spec("bad.x").priority(90), &NORM_RMS, body)
}
