//! Replaces the kernels of a backend by those of a new library: tries them first, swaps them in one step under load, and waits
//! until nothing uses the old ones. Kernels that fail change nothing.

mod trial;

use std::time::Duration;

use crate::engine::Engine;
use lz_core::error::Error;
use lz_core::kernel::KernelEntry;

pub use trial::Trial;

/// Kernels that were replaced.
#[derive(Debug, Clone, Default)]
pub struct Replacement {
    /// Ids of the new kernels.
    pub kernels: Vec<String>,
    /// Ids and versions of the kernels that they replaced.
    pub replaced: Vec<(String, String)>,
    /// What was tried before they were installed.
    pub trial: Trial,
    /// Whether nothing uses the old kernels any more, so that their library is unloaded.
    pub is_drained: bool,
}

impl Engine {
    /// Runs kernels that are not registered yet on made-up calls and compares their results with those of the reference. An error
    /// says which kernel failed, and how.
    pub fn try_kernels(&self, entries: &[KernelEntry]) -> Result<Trial, Error> {
        trial::run(self, entries)
    }

    /// Replaces all kernels of a backend, including other versions of them, by new ones, which are tried first. Waits up to
    /// `patience` until no call uses the old ones; without that they are dropped later. On error nothing changes.
    pub fn replace_backend(
        &self,
        backend: &str,
        entries: Vec<KernelEntry>,
        patience: Duration,
    ) -> Result<Replacement, Error> {
        self.replace(|entry| entry.spec.backend == backend, entries, patience)
    }

    /// Replaces registered kernels by new ones with the same ids and operations, which are tried first.
    pub fn replace_kernels(
        &self,
        entries: Vec<KernelEntry>,
        patience: Duration,
    ) -> Result<Replacement, Error> {
        let names: Vec<(String, String)> =
            entries.iter().map(|entry| (entry.spec.id.clone(), entry.spec.operation.clone())).collect();
        let is_replaced = |entry: &KernelEntry| {
            names.iter().any(|(id, operation)| *id == entry.spec.id && *operation == entry.spec.operation)
        };
        self.replace(is_replaced, entries, patience)
    }

    fn replace(
        &self,
        is_replaced: impl Fn(&KernelEntry) -> bool,
        entries: Vec<KernelEntry>,
        patience: Duration,
    ) -> Result<Replacement, Error> {
        self.check_swap(&is_replaced, &entries)?;
        let trial = self.try_kernels(&entries)?;
        let old = |entry: &KernelEntry| (entry.spec.id.clone(), entry.spec.version.clone());
        let replaced = self.registry().kernels().filter(|entry| is_replaced(entry)).map(old).collect();
        let kernels = entries.iter().map(|entry| entry.spec.id.clone()).collect();
        let is_drained = self.swap(&is_replaced, entries)?.drain(patience);
        for (kernel, operation, context) in &trial.warm {
            self.mark_warm(kernel, operation, context);
        }
        Ok(Replacement { kernels, replaced, trial, is_drained })
    }
}
