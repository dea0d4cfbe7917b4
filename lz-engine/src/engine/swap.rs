//! Replaces kernels under load: one new snapshot has the new kernels instead of the old ones. Calls that run finish with the
//! old kernels, which are dropped with the last reference.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Engine;
use crate::compiled::CompiledKernel;
use crate::selection::loaded_tables::LoadedTables;
use crate::selection::snapshot::SnapshotParts;
use crate::selection::thread::{self, Thread};
use crate::selection::thread_cache::announce_release;
use lz_core::error::Error;
use lz_core::kernel::KernelEntry;

/// How often draining checks whether the old kernels are in use.
const DRAIN_STEP: Duration = Duration::from_millis(1);

/// Kernels that were replaced and may still be in use.
#[derive(Debug, Default)]
pub(crate) struct Replaced(Vec<Weak<CompiledKernel>>);

impl Replaced {
    /// Waits until no call and no plan uses them any more, at most this long. A thread that is idle keeps them until its next
    /// call or its end.
    pub fn drain(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        loop {
            if self.0.iter().all(|kernel| kernel.strong_count() == 0) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(DRAIN_STEP);
        }
    }
}

impl Engine {
    /// Checks that these kernels could replace those, without replacing anything.
    pub(crate) fn check_swap(
        &self,
        is_replaced: impl Fn(&KernelEntry) -> bool,
        entries: &[KernelEntry],
    ) -> Result<(), Error> {
        self.registry().with_replaced(is_replaced, entries.iter().cloned()).map(drop)
    }

    /// Replaces kernels by others in one step: all of them or, if any spec is invalid, none.
    pub(crate) fn swap(
        &self,
        is_replaced: impl Fn(&KernelEntry) -> bool,
        entries: Vec<KernelEntry>,
    ) -> Result<Replaced, Error> {
        let mut old: Vec<(String, String, Weak<CompiledKernel>)> = Vec::new();
        self.shared.change(|parts| {
            let before = Arc::clone(&parts.registry);
            let registry = Arc::new(before.with_replaced(&is_replaced, entries)?);
            old = before
                .shared_kernels()
                .filter(|kernel| is_replaced(&kernel.entry))
                .map(|kernel| {
                    let spec = kernel.spec();
                    (spec.id.clone(), spec.backend.clone(), Arc::downgrade(kernel))
                })
                .collect();
            let is_old = |id: &str| old.iter().any(|(old, ..)| old == id);
            let mut warm = (*parts.warm).clone();
            warm.forget(is_old);
            let rollouts = Arc::new(parts.rollouts.without(is_old));
            let solved = LoadedTables::with_registry(&parts.solved, &registry);
            announce_release();
            Ok(Some(SnapshotParts { registry, solved, rollouts, warm: Arc::new(warm), ..parts }))
        })?;
        // Failures of the old kernels say nothing about the new ones.
        let health = self.health();
        for (kernel, backend, _) in &old {
            health.reset_kernel(kernel);
            health.reset_backend(backend);
        }
        self.shared.update_population();
        self.shared.load_persisted();
        thread::with(Thread::release_all);
        Ok(Replaced(old.into_iter().map(|(.., kernel)| kernel).collect()))
    }
}
