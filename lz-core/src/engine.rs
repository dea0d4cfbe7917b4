//! The engine: decides which kernel runs a call, runs it, and falls back when it fails.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, RwLock};

use crate::context::Context;
use crate::error::Error;
use crate::kernel::{KernelEntry, KernelError};
use crate::operation::OperationInfo;
use crate::reason::{Reason, ReasonCode};
use crate::run::{Run, Scratch};

/// Decides and dispatches.
#[derive(Debug, Default)]
pub struct Engine {
    kernels: RwLock<Arc<Vec<KernelEntry>>>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

impl Engine {
    /// An engine without kernels.
    pub fn new() -> Engine {
        Engine::default()
    }

    /// Adds kernels.
    pub fn register(&self, entries: impl IntoIterator<Item = KernelEntry>) {
        let mut kernels = self.kernels.write().unwrap_or_else(|poison| poison.into_inner());
        let mut all = (**kernels).clone();
        all.extend(entries);
        *kernels = Arc::new(all);
    }

    /// Kernels of one operation, best first.
    fn candidates(&self, operation: &OperationInfo) -> Vec<KernelEntry> {
        let kernels = Arc::clone(&self.kernels.read().unwrap_or_else(|poison| poison.into_inner()));
        let mut found: Vec<KernelEntry> =
            kernels.iter().filter(|entry| entry.spec.operation == operation.name).cloned().collect();
        found.sort_by(|a, b| b.spec.priority.cmp(&a.spec.priority).then_with(|| a.spec.id.cmp(&b.spec.id)));
        found
    }

    /// Runs a validated call: `run_one` is called with the chosen kernel, and again with the next one if it fails.
    pub fn dispatch(
        &self,
        operation: &'static OperationInfo,
        _context: &Context,
        run_one: &mut dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    ) -> Result<(), Error> {
        let candidates = self.candidates(operation);
        let mut reasons = Vec::new();
        for entry in &candidates {
            match run_guarded(entry, run_one) {
                Ok(()) => return Ok(()),
                Err(error) => reasons.push(error.reason),
            }
        }
        match candidates.first() {
            None => Err(Error::NoKernel { operation: operation.name.to_string(), candidates: Vec::new() }),
            Some(first) => Err(Error::KernelExecution {
                operation: operation.name.to_string(),
                kernel: first.spec.id.clone(),
                reasons,
            }),
        }
    }
}

/// Runs a kernel; a panic inside it becomes its failure.
fn run_guarded(
    entry: &KernelEntry,
    run_one: &mut dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    // A kernel may call back into the engine on this thread; the inner call then gets scratch memory of its own.
    let mut scratch = SCRATCH.with(|cell| cell.take());
    let outcome = catch_unwind(AssertUnwindSafe(|| run_one(entry, &mut Run::new(&mut scratch, u64::MAX, 0))));
    SCRATCH.with(|cell| cell.replace(scratch));
    outcome.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        Err(KernelError::because(
            Reason::new(ReasonCode::KernelPanicked).message(format!("{}: {text}", entry.spec.id)),
        ))
    })
}
