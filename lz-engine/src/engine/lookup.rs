//! The decision for a call: from the decision cache, or a new one, which is inserted there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use super::Shared;
use super::decide::{self, Decision, LastResort, Workspace};
use super::dispatch::no_kernels;
use super::run_kernel::panic_text;
use crate::compiled::CompiledKernel;
use crate::selection::cache::{CellKey, Entry};
use crate::selection::call::Call;
use crate::selection::guard;
use crate::selection::operation_table::OperationTable;
use crate::selection::snapshot::Snapshot;
use crate::selection::thread;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::mode::Mode;
use lz_core::plan::Transforms;

/// A selected kernel: from the cache, or decided for this call only.
pub(crate) enum Selected<'w> {
    Cached(&'w Entry),
    Uncached(Decision),
    /// A kernel that compiles inside the call, or whose circuit is open, because no other kernel can run the call.
    LastResort(Decision, LastResort),
}

/// The part of a decision that dispatch needs.
pub(crate) struct Choice {
    /// The kernel's index in the registry.
    pub kernel: u32,
    pub workspace: Workspace,
    pub transforms: Transforms,
}

impl Selected<'_> {
    #[inline]
    pub fn choice(&self) -> Choice {
        match self {
            Selected::Cached(entry) => {
                Choice { kernel: entry.kernel, workspace: entry.workspace, transforms: entry.transforms }
            }
            Selected::Uncached(decision) | Selected::LastResort(decision, _) => Choice {
                kernel: decision.kernel,
                workspace: decision.workspace,
                transforms: decision.transforms,
            },
        }
    }
}

impl Shared {
    /// [`find`](Shared::find); after a panic inside selection, which is recorded as a fault of the engine, the reference.
    pub(super) fn find_guarded<'w>(
        &self,
        snapshot: &'w Snapshot,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
    ) -> Result<Selected<'w>, Error> {
        let panic = match catch_unwind(AssertUnwindSafe(|| self.find(snapshot, table, context, mode))) {
            Ok(selected) => return selected,
            Err(panic) => panic,
        };
        let operation = &table.info.name;
        let message = format!("selection of {operation} panicked: {}", panic_text(panic.as_ref()));
        snapshot.health.record_engine_fault(&message);
        let platform = snapshot.devices.of_call(table.device_field, context).map(|device| device.platform());
        let is_reference = |kernel: &CompiledKernel| {
            kernel.is_reference() && platform.is_none_or(|platform| kernel.spec().platform == platform)
        };
        let found = (0u16..).zip(&table.candidates).find_map(|(position, candidate)| {
            let kernel =
                snapshot.registry.compiled(candidate.kernel).filter(|kernel| is_reference(kernel))?;
            Some((position, candidate.kernel, kernel))
        });
        let Some((position, kernel, _)) = found else { return Err(no_kernels(table.info)) };
        let workspace = Workspace::COMPUTED;
        let (transforms, guards) = (Transforms::NONE, Box::default());
        Ok(Selected::Uncached(Decision { kernel, position, transforms, workspace, guards }))
    }

    /// The decision for a call: from the cache, or a new one.
    pub fn find<'w>(
        &self,
        snapshot: &'w Snapshot,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
    ) -> Result<Selected<'w>, Error> {
        let mut key = CellKey::EMPTY;
        if !(snapshot.caching_enabled && key.fill(table, context, mode)) {
            snapshot.observation.telemetry.metrics.misses.fetch_add(1, Ordering::Relaxed);
            let call = self.observed_call(snapshot, table, context, mode);
            let Some(decision) = decide::decide(&call) else { return self.select_last_resort(&call) };
            self.observer.decided(&call, decision.position);
            return Ok(Selected::Uncached(decision));
        }
        let lookup =
            || snapshot.decisions.get(&key, |entry| guards_hold(entry, snapshot, table, context, mode));
        match lookup() {
            Some(entry) => Ok(Selected::Cached(entry)),
            None => self.decide_and_insert(snapshot, table, context, mode, &key, lookup),
        }
    }

    #[cold]
    fn decide_and_insert<'w>(
        &self,
        snapshot: &'w Snapshot,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
        key: &CellKey,
        lookup: impl Fn() -> Option<&'w Entry>,
    ) -> Result<Selected<'w>, Error> {
        let nested = thread::with(|thread| thread.deciding.replace(true));
        let _alone = (!nested).then(|| snapshot.decisions.decide_alone(key));
        let _deciding = DecisionScope { nested };
        if let Some(entry) = lookup() {
            return Ok(Selected::Cached(entry));
        }
        snapshot.observation.telemetry.metrics.misses.fetch_add(1, Ordering::Relaxed);
        let call = self.observed_call(snapshot, table, context, mode);
        let Some(decision) = decide::decide(&call) else { return self.select_last_resort(&call) };
        self.observer.decided(&call, decision.position);
        match snapshot.decisions.insert(key, &decision) {
            Some(entry) => Ok(Selected::Cached(entry)),
            None => {
                self.grow_cache(snapshot.generation);
                Ok(Selected::Uncached(decision))
            }
        }
    }

    /// A call whose decision may be recorded. Recorded decisions must not depend on how far a verification is.
    fn observed_call<'c>(
        &self,
        snapshot: &'c Snapshot,
        table: &'c OperationTable,
        context: &'c Context,
        mode: Mode,
    ) -> Call<'c> {
        let mut call = Call::new(snapshot, table, context, mode);
        call.settles_judgments |= self.observer.is_recording();
        call
    }

    /// The last resort of a call that no eligible kernel can run, or the error that says why.
    #[cold]
    fn select_last_resort<'w>(&self, call: &Call<'_>) -> Result<Selected<'w>, Error> {
        if decide::settle_judgments(call)
            && let Some(decision) = decide::decide(call)
        {
            self.observer.decided(call, decision.position);
            return Ok(Selected::Uncached(decision));
        }
        let Some((decision, last_resort)) = decide::decide_last_resort(call) else {
            return Err(decide::refusal(call));
        };
        self.observer.decided(call, decision.position);
        Ok(Selected::LastResort(decision, last_resort))
    }
}

/// Whether the guards of a cached decision hold for a call.
#[inline(never)]
pub(super) fn guards_hold(
    entry: &Entry,
    snapshot: &Snapshot,
    table: &OperationTable,
    context: &Context,
    mode: Mode,
) -> bool {
    guard::all_hold(entry.guards(), snapshot, table, context, mode)
}

/// Clears the flag of the thread when a decision was made.
struct DecisionScope {
    nested: bool,
}

impl Drop for DecisionScope {
    fn drop(&mut self) {
        thread::with(|thread| thread.deciding.set(self.nested));
    }
}
