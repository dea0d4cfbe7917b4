//! Failures: kernels that break, devices that are lost, files that are wrong, databases that are damaged, processes that die.

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
use lz_scenarios::house::{host_spec, register};
use lz_scenarios::kernels::{doing, quiet};

/// The second process of a scenario.
const OTHER: &str = env!("CARGO_BIN_EXE_other-process");

/// A host engine whose time stands still until it is moved.
fn clocked(entries: impl IntoIterator<Item = KernelEntry>) -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::starting_at(2_000_000_000));
    let engine = Engine::with_health(Arc::new(Health::new(HealthConfig::default(), clock.clone())));
    register(&engine, entries);
    (engine, clock)
}

/// A kernel of the highest priority that fails while its switch says so, and how often it was called.
struct Moody {
    broken: Arc<AtomicU32>,
    calls: Arc<AtomicU32>,
}

impl Moody {
    fn new() -> Moody {
        Moody { broken: Arc::new(AtomicU32::new(1)), calls: Arc::new(AtomicU32::new(0)) }
    }

    fn mend(&self) {
        self.broken.store(0, Ordering::SeqCst);
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    fn entry(&self, spec: KernelSpec) -> KernelEntry {
        let (broken, calls) = (Arc::clone(&self.broken), Arc::clone(&self.calls));
        doing(spec, &NORM_RMS, move || {
            calls.fetch_add(1, Ordering::SeqCst);
            if broken.load(Ordering::SeqCst) == 1 {
                Err(KernelError::failed("a launch failure"))
            } else {
                Ok(())
            }
        })
    }
}

/// `good.x`, which always works.
fn good() -> KernelEntry {
    quiet(host_spec("good.x"), &NORM_RMS)
}

/// `bad.x`, of a higher priority, which does what is said.
fn bad(deed: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static) -> KernelEntry {
    doing(host_spec("bad.x").priority(90), &NORM_RMS, deed)
}
