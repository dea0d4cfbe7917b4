//! Calls decided under a held snapshot, whatever changes meanwhile: the calls of one graph capture must be decided
//! consistently.

use std::sync::Arc;

use super::Engine;
use super::dispatch::{self, RunOne, TakenState};
use super::fallback::FailedRun;
use super::run_kernel::run_admitted;
use crate::selection::call::Call;
use crate::selection::snapshot::Snapshot;
use crate::selection::thread::{self, Thread};
use crate::selection::thread_scope;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;

/// A held snapshot of the engine's state.
#[derive(Debug, Clone)]
pub struct HeldSnapshot(Arc<Snapshot>);

impl Engine {
    /// Holds the current snapshot.
    pub fn hold_snapshot(&self) -> HeldSnapshot {
        HeldSnapshot(self.shared.published.load())
    }

    /// Runs a call under a held snapshot. Fallbacks after a failure, and operations that the snapshot does not have, use the current
    /// one.
    #[cold]
    pub fn dispatch_with_snapshot(
        &self,
        moment: &HeldSnapshot,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let HeldSnapshot(snapshot) = moment;
        let mode = thread_scope::of_thread().apply(snapshot.mode);
        let scoped = snapshot.in_scope(mode);
        let snapshot = scoped.as_deref().unwrap_or(snapshot);
        let Some(table) = snapshot.table(operation) else {
            return self.shared.dispatch(operation, context, &mut |entry, run| run_one(entry, run));
        };
        let choice = self.shared.find(snapshot, table, context, mode)?.choice();
        let Some(kernel) = snapshot.registry.compiled(choice.kernel) else {
            return Err(dispatch::no_kernels(operation));
        };
        let bytes = choice.workspace.bytes(kernel, context);
        let mut taken = TakenState::new(thread::with(Thread::take));
        let state = taken.get();
        state.refresh(&self.shared.published);
        let call = Call::new(snapshot, table, context, mode);
        let scratch = &mut state.scratch;
        match run_admitted(&call, kernel, bytes, choice.transforms, scratch, run_one) {
            None => Ok(()),
            Some(error) => {
                let failed_run = FailedRun::recorded(snapshot.registry.shared(choice.kernel), error);
                self.shared.recover(state, operation, context, failed_run, run_one)
            }
        }
    }
}
