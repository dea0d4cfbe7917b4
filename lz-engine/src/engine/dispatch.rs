//! Runs a call: looks up or makes the decision and runs its kernel.

use std::sync::Arc;

use super::Shared;
use super::decide::LastResort;
use super::fallback::FailedRun;
use super::lookup::{Choice, Selected, guards_hold};
use super::run_kernel::{run_admitted, run_guarded, run_observed};
use super::versions::DividedCall;
use crate::compiled::CompiledKernel;
use crate::selection::cache::{self, CellKey};
use crate::selection::call::Call;
use crate::selection::exact_cache::CachedDecision;
use crate::selection::operation_table::OperationTable;
use crate::selection::snapshot::Snapshot;
use crate::selection::thread::{self, Thread};
use crate::selection::thread_cache::{ThreadCacheSet, ThreadState};
use crate::selection::thread_scope;
use crate::telemetry::ThreadCounters;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::Run;

/// The callback of generated code that runs one kernel.
pub(crate) type RunOne<'r> = dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + 'r;

impl Shared {
    /// Runs a call. A hit on the thread's latest entry is inlined into each caller, where the words of the context are still
    /// in registers and the kernel can be called directly.
    #[inline(always)]
    pub fn dispatch<F>(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut F,
    ) -> Result<(), Error>
    where
        F: FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    {
        // Two short accesses to the thread-local: one that spans the kernel call would not be inlined.
        let (state, change) = thread::with(|thread| (thread.take(), thread.change.get()));
        let Some(state) = state else {
            return self.dispatch_slow_path(&mut TakenState(None), operation, context, run_one);
        };
        let generation = self.published.number();
        let Some((entry, kernel, scratch)) =
            state.lookup_latest(operation.slot(), generation, change, context)
        else {
            // The number of words is still a constant here.
            let weight = cache::hash_words(context.cell_words());
            return self.dispatch_cached(state, operation, (context, weight), run_one);
        };
        match run_guarded(kernel, entry.decision.workspace, entry.decision.transforms, scratch, run_one) {
            None => {
                thread::with(|thread| thread.restore(state));
                Ok(())
            }
            Some(error) => {
                let kernel = entry.kernel.clone();
                self.recover_fast_path(state, operation, context, kernel, error, run_one)
            }
        }
    }

    /// Runs a call that missed the thread's latest entry: from the thread cache or the decision cache, otherwise on the
    /// [slow path](Shared::dispatch_slow_path).
    #[inline(never)]
    fn dispatch_cached(
        &self,
        state: &'static mut ThreadState,
        operation: &'static OperationInfo,
        (context, weight): (&Context, u64),
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let mut taken = TakenState::new(Some(state));
        let state = taken.get();
        let decision = self.lookup_cached(state, operation, context, weight);
        let (Some(decision), ThreadState { snapshot: Some(snapshot), scratch, .. }) = (decision, &mut *state)
        else {
            return self.dispatch_slow_path(&mut taken, operation, context, run_one);
        };
        let Some(kernel) = snapshot.registry.compiled(decision.kernel) else {
            return Err(no_kernels(operation));
        };
        match run_guarded(kernel, decision.workspace, decision.transforms, scratch, run_one) {
            None => Ok(()),
            Some(error) => {
                let failed_run = FailedRun::new(snapshot.registry.shared(decision.kernel), error);
                self.recover(state, operation, context, failed_run, run_one)
            }
        }
    }

    /// The cached decision for a call, from the thread cache or the decision cache. `None` sends the call to the slow path.
    /// Not inlined: together with running the kernel it would spill registers.
    #[inline(never)]
    fn lookup_cached(
        &self,
        state: &mut ThreadState,
        operation: &'static OperationInfo,
        context: &Context,
        weight: u64,
    ) -> Option<CachedDecision> {
        if state.generation != self.published.number() || state.hits >= state.hit_budget {
            return None;
        }
        let ThreadState { snapshot: Some(snapshot), thread_cache, tally, hits, hit_budget, .. } = state
        else {
            return None;
        };
        let change = thread_scope::of_thread();
        let mode = change.apply(snapshot.mode);
        let (slot, generation) = (operation.slot(), snapshot.generation);
        let takes_slow_path = snapshot.takes_slow_path(slot);
        if !snapshot.fast_path_enabled
            || mode.overlay_id() != 0
            || takes_slow_path && snapshot.health.poll_due()
        {
            return None;
        }
        let head = cache::head(slot, mode);
        let number = cache::number(head, weight);
        let mut set = thread_cache.of(slot);
        if let Some(entry) = set.as_deref_mut().and_then(|set| set.find(number, generation, change, context))
        {
            entry.budget = entry.budget.checked_sub(1)?;
            return Some(entry.decision);
        }
        let found = snapshot.decisions.exact.find(number, head, context.words());
        let is_exact = found.is_some();
        let (decision, depends_only_on_call) = match found {
            Some(decision) => (decision, true),
            None => lookup_decision(snapshot, snapshot.table(operation)?, number, context, mode)?,
        };
        if takes_slow_path && snapshot.needs_permit(decision.kernel) {
            return None;
        }
        *hits += 1;
        let is_flush_due = ThreadCounters::is_due_after_hit(*hits);
        tally.exact_hits += u32::from(is_exact);
        tally.called(decision.kernel);
        // A hit in the thread cache does not consult health, so operations with recent failures are not inserted.
        if depends_only_on_call && !takes_slow_path && set.is_none_or(|set| set.should_insert(number)) {
            let (table, call) = (snapshot.table(operation)?, (number, context, change));
            thread_cache.insert(snapshot, table, call, decision, (tally, *hit_budget));
        }
        if is_flush_due {
            state.flush_totals();
        }
        Some(decision)
    }

    #[cold]
    #[inline(never)]
    fn recover_fast_path(
        &self,
        state: &'static mut ThreadState,
        operation: &'static OperationInfo,
        context: &Context,
        kernel: Option<Arc<CompiledKernel>>,
        error: Box<KernelError>,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let failed_run = FailedRun::new(kernel, error);
        self.recover(TakenState::new(Some(state)).get(), operation, context, failed_run, run_one)
    }

    /// The slow path: handles overlays, observation, permits, last resorts and cache misses.
    #[inline(never)]
    fn dispatch_slow_path(
        &self,
        taken: &mut TakenState,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let state = taken.get();
        state.refresh(&self.published);
        let change = thread_scope::of_thread();
        let is_exhausted = state.is_exhausted(operation.slot(), change, context);
        if is_exhausted {
            state.renew_budgets(operation.slot(), change, context);
        }
        let weight = state.take_weight();
        thread::with(|thread| thread.weight.set(weight));
        if is_exhausted {
            state.renew_shared_budget();
            self.expire();
            state.refresh(&self.published);
        }
        if state.snapshot.as_ref().is_some_and(|snapshot| snapshot.any_slow_path() && snapshot.health.poll())
        {
            state.refresh(&self.published);
        }
        state.count_slow_selection();
        let failed_run = 'run: {
            let ThreadState { snapshot: Some(snapshot), thread_cache, scratch, tally, hit_budget, .. } =
                state
            else {
                return Err(no_kernels(operation));
            };
            let telemetry = &snapshot.observation.telemetry;
            if !snapshot.devices.are_real() {
                return Err(simulated_device_error(operation));
            }
            let change = thread_scope::of_thread();
            let mode = change.apply(snapshot.mode);
            let scoped = snapshot.in_scope(mode);
            let snapshot = scoped.as_deref().unwrap_or(snapshot);
            let Some(table) = snapshot.table(operation) else { return Err(no_kernels(operation)) };
            let selected = telemetry.select(
                &snapshot.observation,
                snapshot.observe,
                operation,
                || self.find_guarded(snapshot, table, context, mode),
                |selected| {
                    let kernel = snapshot.registry.compiled(selected.choice().kernel);
                    kernel.map(|kernel| kernel.spec().id.clone()).unwrap_or_default()
                },
            )?;
            let Choice { kernel: index, workspace, transforms } = selected.choice();
            let Some(kernel) = snapshot.registry.compiled(index) else {
                return Err(no_kernels(operation));
            };
            tally.slow_executions += 1;
            let stable = snapshot.registry.base(index);
            if snapshot.needs_permit(stable) && !table.versions.is_empty() {
                let call = DividedCall { snapshot, table, context, mode, stable };
                if let Some(divided) = self.run_divided(&call, scratch, run_one) {
                    tally.called(divided.kernel);
                    match divided.failed {
                        None => return Ok(()),
                        Some(failed_run) => break 'run failed_run,
                    }
                }
            }
            tally.called(index);
            let bytes = workspace.bytes(kernel, context);
            let (slot, takes_slow_path) = (operation.slot(), snapshot.takes_slow_path(operation.slot()));
            if let Selected::Cached(entry) = &selected
                && !(takes_slow_path || snapshot.observe.every_call())
                && snapshot.depends_only_on_call(entry)
            {
                let number = cache::number(cache::head(slot, mode), cache::hash_words(context.cell_words()));
                let is_new = |set: &mut ThreadCacheSet| {
                    !set.contains(number, snapshot.generation) && set.should_insert(number)
                };
                if thread_cache.of(slot).is_none_or(is_new) {
                    let decision = CachedDecision { workspace: bytes, kernel: index, transforms };
                    let budget = (tally, *hit_budget);
                    thread_cache.insert(snapshot, table, (number, context, change), decision, budget);
                }
            }
            let outcome = if takes_slow_path {
                let mut call = Call::new(snapshot, table, context, mode);
                call.allow_open_circuit = matches!(selected, Selected::LastResort(_, LastResort::Open));
                run_admitted(&call, kernel, bytes, transforms, scratch, run_one)
            } else {
                let call = || Call::new(snapshot, table, context, mode);
                run_observed(snapshot, call, kernel, bytes, transforms, scratch, run_one)
            };
            match outcome {
                None => {
                    if matches!(selected, Selected::LastResort(_, LastResort::Cold)) {
                        self.mark_warm(&kernel.spec().id, operation, context);
                    }
                    return Ok(());
                }
                Some(error) => {
                    let kernel = snapshot.registry.shared(index);
                    if takes_slow_path {
                        FailedRun::recorded(kernel, error)
                    } else {
                        FailedRun::new(kernel, error)
                    }
                }
            }
        };
        self.recover(state, operation, context, failed_run, run_one)
    }
}

/// The cached decision of a call's cell, evaluated for the call, and whether it depends on the call only. If so, it is inserted
/// into the exact cache.
#[inline(never)]
fn lookup_decision(
    snapshot: &Snapshot,
    table: &OperationTable,
    number: u64,
    context: &Context,
    mode: Mode,
) -> Option<(CachedDecision, bool)> {
    let mut key = CellKey::EMPTY;
    if !key.fill(table, context, mode) {
        return None;
    }
    let entry = snapshot.decisions.get(&key, |entry| guards_hold(entry, snapshot, table, context, mode))?;
    let kernel = snapshot.registry.compiled(entry.kernel)?;
    let workspace = entry.workspace.bytes(kernel, context);
    let decision = CachedDecision { workspace, kernel: entry.kernel, transforms: entry.transforms };
    let depends_only_on_call = snapshot.depends_only_on_call(entry);
    if depends_only_on_call {
        let (head, words) = (cache::head(table.info.slot(), mode), table.key_words(context));
        snapshot.decisions.exact.insert(number, head, words, decision);
    }
    Some((decision, depends_only_on_call))
}

/// The thread state taken for a call; put back when dropped.
pub(super) struct TakenState(Option<&'static mut ThreadState>);

impl TakenState {
    /// Takes ownership of a taken state.
    pub fn new(state: Option<&'static mut ThreadState>) -> TakenState {
        TakenState(state)
    }

    /// The taken state; a spare one if the thread's own is in use.
    pub fn get(&mut self) -> &mut ThreadState {
        self.0.get_or_insert_with(|| thread::with(Thread::take_spare))
    }
}

impl Drop for TakenState {
    fn drop(&mut self) {
        if let Some(state) = self.0.take() {
            thread::with(|thread| thread.restore(state));
        }
    }
}

pub(super) fn no_kernels(operation: &OperationInfo) -> Error {
    Error::NoKernel { operation: operation.name.to_string(), candidates: Vec::new() }
}

pub(super) fn simulated_device_error(operation: &OperationInfo) -> Error {
    let reason = Reason::new(ReasonCode::DeviceAbsent)
        .message("this engine has a simulated device: only `explain` and `which` are available");
    Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] }
}
