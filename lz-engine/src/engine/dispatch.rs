//! Runs a call: looks up or makes the decision and runs its kernel. The fallback path records a failure and runs the next kernel of the
//! plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::decide::{self, Decision, LastResort, Workspace};
use super::versions::DividedCall;
use crate::compiled::CompiledKernel;
use crate::health::Failure;
use crate::selection::cache::{self, CellKey, Entry};
use crate::selection::call::Call;
use crate::selection::exact_cache::CachedDecision;
use crate::selection::guard;
use crate::selection::operation_table::OperationTable;
use crate::selection::score;
use crate::selection::snapshot::Snapshot;
use crate::selection::thread::{self, Thread};
use crate::selection::thread_cache::{ThreadCacheSet, ThreadState};
use crate::selection::thread_scope;
use crate::telemetry::{ObserveOptions, Recording, ThreadCounters, WatchedRun};
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError, Severity};
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::{Run, Scratch};

/// The callback of generated code that runs one kernel.
pub(crate) type RunOne<'r> = dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + 'r;

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
            if snapshot.needs_permit(index) && !table.versions.is_empty() {
                let call = DividedCall { snapshot, table, context, mode, stable: index };
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

    /// [`find`](Shared::find); after a panic inside selection, which is recorded as a fault of the engine, the reference.
    fn find_guarded<'w>(
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
            let call = Call::new(snapshot, table, context, mode);
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
        let call = Call::new(snapshot, table, context, mode);
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

    /// The last resort of a call that no eligible kernel can run, or the error that says why.
    #[cold]
    fn select_last_resort<'w>(&self, call: &Call<'_>) -> Result<Selected<'w>, Error> {
        let Some((decision, last_resort)) = decide::decide_last_resort(call) else {
            return Err(decide::refusal(call));
        };
        self.observer.decided(call, decision.position);
        Ok(Selected::LastResort(decision, last_resort))
    }

    /// After a failure: records it and tries the fallbacks, best first, where policy allows.
    #[cold]
    pub(super) fn recover(
        &self,
        state: &mut ThreadState,
        operation: &'static OperationInfo,
        context: &Context,
        failed_run: FailedRun,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let Some(snapshot) = state.snapshot.clone() else { return Err(no_kernels(operation)) };
        let mode = thread_scope::of_thread().apply(snapshot.mode);
        let snapshot = snapshot.in_scope(mode).unwrap_or(snapshot);
        let metrics = &snapshot.observation.telemetry.metrics;
        metrics.failed(failed_run.error.cause);
        let (Some(table), Some(kernel)) = (snapshot.table(operation), failed_run.kernel.as_deref()) else {
            return Err(no_kernels(operation));
        };
        let first = kernel.spec().id.clone();
        // Tokenizers verify a share of their texts themselves.
        if failed_run.error.reason.code == ReasonCode::TokenizerNotEqual {
            metrics.result_mismatched(&operation.name, &first);
        }
        invalidate_memory_figures(&snapshot, &failed_run.error);
        if !failed_run.recorded {
            record(&Call::new(&snapshot, table, context, mode), kernel, &failed_run.error);
        }
        let mut reasons = vec![failed_run.error.reason.clone()];
        let mut may_fall_back = self.may_fall_back(&snapshot, operation, &failed_run.error, &mut reasons);
        let mut tried = vec![first.clone()];
        // Recording the failure published a new snapshot; the fallbacks are selected under it.
        let snapshot = self.published.load();
        let mode = thread_scope::of_thread().apply(snapshot.mode);
        let snapshot = snapshot.in_scope(mode).unwrap_or(snapshot);
        let Some(table) = snapshot.table(operation) else { return Err(no_kernels(operation)) };
        let mut call = Call::new(&snapshot, table, context, mode);
        let mut others = if may_fall_back { decide::eligible(&call) } else { Vec::new() };
        let closed = others.len();
        if may_fall_back {
            others.extend(decide::open(&call));
        }
        for (number, ranked) in others.into_iter().enumerate() {
            // Kernels with an open circuit come last.
            call.allow_open_circuit = number >= closed;
            let candidate = table.candidates.get(usize::from(ranked.position));
            let Some(kernel) = candidate.and_then(|one| snapshot.registry.compiled(one.kernel)) else {
                continue;
            };
            let id = &kernel.spec().id;
            if !may_fall_back || tried.contains(id) {
                continue;
            }
            tried.push(id.clone());
            metrics.executed(kernel.spec());
            let bytes = crate::selection::filter::workspace(kernel, &call.values).unwrap_or(0);
            match run_admitted(&call, kernel, bytes, ranked.transforms, &mut state.scratch, run_one) {
                None => {
                    self.note_fallback(&snapshot, operation, &first, id, &reasons);
                    return Ok(());
                }
                Some(error) => {
                    metrics.failed(error.cause);
                    reasons.push(error.reason.clone());
                    invalidate_memory_figures(&snapshot, &error);
                    may_fall_back = self.may_fall_back(&snapshot, operation, &error, &mut reasons);
                }
            }
        }
        Err(Error::KernelExecution { operation: operation.name.to_string(), kernel: first, reasons })
    }

    /// Whether a fallback may run after a failure; if not, the reason is appended.
    pub(super) fn may_fall_back(
        &self,
        snapshot: &Snapshot,
        operation: &'static OperationInfo,
        error: &KernelError,
        reasons: &mut Vec<Reason>,
    ) -> bool {
        if error.reason.code == ReasonCode::CallInterrupted {
            return false;
        }
        if error.severity == Severity::Device {
            reasons.push(Reason::new(ReasonCode::DeviceLost));
            return false;
        }
        if !snapshot.policy.fallback_enabled.value {
            let source = &snapshot.policy.fallback_enabled.source;
            let message = format!("fallback_enabled is false ({source})");
            reasons.push(Reason::new(ReasonCode::FallbackDisallowed).message(message));
            return false;
        }
        let mutates = operation.schema().inputs.iter().any(|input| input.read_write);
        if mutates && !error.untouched {
            let message = format!(
                "{} changes its inputs, and the kernel that failed may have changed them already",
                operation.name
            );
            reasons.push(Reason::new(ReasonCode::FallbackDisallowed).message(message));
            return false;
        }
        true
    }
}

/// Whether the guards of a cached decision hold for a call.
#[inline(never)]
fn guards_hold(
    entry: &Entry,
    snapshot: &Snapshot,
    table: &OperationTable,
    context: &Context,
    mode: Mode,
) -> bool {
    guard::all_hold(entry.guards(), snapshot, table, context, mode)
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

/// A kernel run that failed.
pub(super) struct FailedRun {
    kernel: Option<Arc<CompiledKernel>>,
    error: KernelError,
    recorded: bool,
}

impl FailedRun {
    /// A failure that health has not recorded yet.
    #[cold]
    #[expect(clippy::boxed_local, reason = "passed as a box to keep the hit path small")]
    fn new(kernel: Option<Arc<CompiledKernel>>, error: Box<KernelError>) -> FailedRun {
        FailedRun { kernel, error: *error, recorded: false }
    }

    /// A failure that health has recorded.
    #[cold]
    #[expect(clippy::boxed_local, reason = "as above")]
    pub fn recorded(kernel: Option<Arc<CompiledKernel>>, error: Box<KernelError>) -> FailedRun {
        FailedRun { kernel, error: *error, recorded: true }
    }
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

struct DecisionScope {
    nested: bool,
}

impl Drop for DecisionScope {
    fn drop(&mut self) {
        thread::with(|thread| thread.deciding.set(self.nested));
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

/// The error of a kernel run; `None` on success. Boxed, because success is by far the common case.
pub(super) type Outcome = Option<Box<KernelError>>;

/// Runs a kernel; a panic inside it is returned as its error.
#[inline(always)]
pub(super) fn run_guarded<F>(
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut F,
) -> Outcome
where
    F: FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + ?Sized,
{
    let mut run = Run::new(scratch, workspace);
    run.transforms = transforms;
    let guarded = AssertUnwindSafe(|| match run_one(&kernel.entry, &mut run) {
        Ok(()) => None,
        Err(error) => failed(error),
    });
    match catch_unwind(guarded) {
        Ok(outcome) => outcome,
        Err(panic) => failed(panicked(kernel, panic.as_ref())),
    }
}

/// Like [`run_guarded`], with the observation (spans, logs, timing) that is configured.
fn run_observed<'c>(
    snapshot: &Snapshot,
    call: impl Fn() -> Call<'c>,
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Outcome {
    let observe = snapshot.observe;
    if observe == ObserveOptions::default() {
        return run_guarded(kernel, workspace, transforms, scratch, run_one);
    }
    let observation = &snapshot.observation;
    let weight = thread::with(|thread| thread.weight.replace(1));
    let recording = Recording::sample(observation, observe.verify_every, weight, kernel.info, &kernel.entry);
    let run = || match &recording {
        None => run_guarded(kernel, workspace, transforms, scratch, run_one),
        Some(recording) => run_guarded(kernel, workspace, transforms, scratch, &mut |entry, run| {
            run_one(&recording.entry(entry), run)
        }),
    };
    let identify = |call: &Call<'_>| {
        let subject = call.subject(kernel);
        (subject.bucket.to_vec(), subject.device.to_owned())
    };
    let watched = observe.watch.filter(|_| kernel.spec().runs_in.is_none()).map(|budget| {
        let call = call();
        let (health, telemetry) = (Arc::clone(&snapshot.health), Arc::clone(&observation.telemetry));
        let (spec, identity) = (Arc::clone(&kernel.entry.spec), identify(&call));
        let run = WatchedRun::new(kernel.info, spec, *call.context, identity, health, telemetry, budget);
        observation.watchdog.watch(run)
    });
    let outcome = run_timed(snapshot, &call, kernel, run);
    drop(watched);
    if let (None, Some(recording)) = (&outcome, recording) {
        recording.finish(&observation.telemetry, kernel.info, &kernel.entry, || identify(&call()));
    }
    outcome
}

/// Runs a kernel with spans, logs and timing.
fn run_timed<'c>(
    snapshot: &Snapshot,
    call: &impl Fn() -> Call<'c>,
    kernel: &CompiledKernel,
    run: impl FnOnce() -> Outcome,
) -> Outcome {
    let observation = &snapshot.observation;
    let run = || run().map_or(Ok(()), |error| Err(*error));
    match observation.telemetry.run(observation, snapshot.observe, kernel.info, kernel.spec(), run) {
        Ok(time) => {
            if let (Some(time), Some(_)) = (time, &snapshot.evidence) {
                add_regret(&call(), kernel, time);
            }
            None
        }
        Err(error) => failed(error),
    }
}

/// Adds the time that a timed call lost against the fastest measured kernel that could have run it. Timed calls stand for
/// all calls.
#[cold]
fn add_regret(call: &Call<'_>, kernel: &CompiledKernel, time: std::time::Duration) {
    let measured = score::measured(call);
    let usable = decide::eligible(call);
    let median = |one: &decide::Ranked| measured.get(usize::from(one.position))?.map(|one| one.median_ns);
    let fastest = usable.iter().filter_map(|one| Some((median(one)?, one.position)));
    let Some((fastest, position)) = fastest.min_by(|(a, _), (b, _)| a.total_cmp(b)) else { return };
    let best = call.table.candidates.get(usize::from(position));
    let is_best = best
        .and_then(|candidate| call.snapshot.registry.compiled(candidate.kernel))
        .is_some_and(|best| best.spec().id == kernel.spec().id);
    if !is_best {
        let lost = (time.as_nanos() as f64 - fastest).max(0.0);
        let weight = f64::from(call.snapshot.observe.time_every.max(1));
        call.snapshot.observation.telemetry.metrics.lost(&kernel.info.name, lost * weight);
    }
}

#[cold]
#[inline(never)]
fn failed(error: KernelError) -> Outcome {
    Some(Box::new(error))
}

#[cold]
#[inline(never)]
fn panicked(kernel: &CompiledKernel, panic: &(dyn std::any::Any + Send)) -> KernelError {
    let message = format!("{}: {}", kernel.spec().id, panic_text(panic));
    KernelError::because(Reason::new(ReasonCode::KernelPanicked).message(message))
}

/// The message of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panicked without a message")
}

/// Runs a kernel under a circuit-breaker permit and records the outcome.
pub(super) fn run_admitted(
    call: &Call<'_>,
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Outcome {
    let permit = match call.snapshot.health.admit(call.subject(kernel)) {
        Ok(permit) => Some(permit),
        Err(refusal) if call.allow_open_circuit && refusal.yields_to_last_resort(kernel.is_reference()) => {
            None
        }
        Err(refusal) => {
            let reason = Reason::new(ReasonCode::CircuitHalfOpenBusy).message(refusal.to_string());
            return Some(Box::new(KernelError::because(reason).before_writing()));
        }
    };
    let again = || Call::new(call.snapshot, call.table, call.context, call.mode);
    let outcome = run_observed(call.snapshot, again, kernel, workspace, transforms, scratch, run_one);
    match (&outcome, permit) {
        (None, Some(permit)) => permit.succeeded(),
        (Some(error), Some(permit)) => permit.failed(Failure::of(error, &failure_text(error))),
        // A call past an open circuit does not change its state; only probes do.
        (_, None) => {}
    }
    outcome
}

/// After a failed allocation, drops the cached free-memory figures.
fn invalidate_memory_figures(snapshot: &Snapshot, error: &KernelError) {
    if error.reason.code == ReasonCode::OutOfMemory {
        snapshot.blocks.clear();
    }
}

/// Records a failure in health.
pub(super) fn record(call: &Call<'_>, kernel: &CompiledKernel, error: &KernelError) {
    if let Ok(permit) = call.snapshot.health.admit(call.subject(kernel)) {
        permit.failed(Failure::of(error, &failure_text(error)));
    }
}

/// The text that health stores for a failure: the sentence, prefixed with the code unless that is only `KernelFailed`.
pub(super) fn failure_text(error: &KernelError) -> String {
    match error.reason.code {
        ReasonCode::KernelFailed => error.reason.sentence(),
        _ => error.reason.to_string(),
    }
}
