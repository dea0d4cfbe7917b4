//! Running a call: find the decision, run its kernel, and when that fails say so, remember it and try the next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::decide::{self, Decision, Resort, Workspace};
use crate::compiled::CompiledKernel;
use crate::health::Failure;
use crate::selection::cache::{self, CellKey, Entry};
use crate::selection::call::Call;
use crate::selection::exact_cache::Settled;
use crate::selection::guard;
use crate::selection::operation_table::OperationTable;
use crate::selection::snapshot::World;
use crate::selection::thread::{self, Thread};
use crate::selection::thread_cache::Local;
use crate::selection::thread_scope;
use crate::telemetry::Watch;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError, Severity};
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::{Run, Scratch};

/// How generated code runs one kernel.
pub(crate) type RunOne<'r> = dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + 'r;

/// A decision, kept or made for this call alone.
pub(crate) enum Found<'w> {
    Kept(&'w Entry),
    Fresh(Decision),
    /// A kernel that compiles inside the call, or whose circuit is open, because nothing else can run it.
    LastResort(Decision, Resort),
}

/// What dispatch needs of a decision.
pub(crate) struct Choice {
    /// The kernel's index in the registry.
    pub kernel: u32,
    pub workspace: Workspace,
    pub transforms: Transforms,
}

impl Found<'_> {
    #[inline]
    pub fn choice(&self) -> Choice {
        match self {
            Found::Kept(entry) => {
                Choice { kernel: entry.kernel, workspace: entry.workspace, transforms: entry.transforms }
            }
            Found::Fresh(decision) | Found::LastResort(decision, _) => Choice {
                kernel: decision.kernel,
                workspace: decision.workspace,
                transforms: decision.transforms,
            },
        }
    }
}

impl Shared {
    /// Runs a call, with what its thread remembers if that is enough. This much is compiled into each caller, where the
    /// words of the context are still in registers and the kernel is called without a detour.
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
        // Two short looks at the thread: one long one would not be compiled into the caller.
        let (local, change) = thread::with(|thread| (thread.take(), thread.change.get()));
        let Some(local) = local else {
            return self.dispatch_slowly(&mut Taken(None), operation, context, run_one);
        };
        let generation = self.published.number();
        let Some((way, kernel, scratch)) = local.recall(operation.slot(), generation, change, context) else {
            // Here it is still known how many words there are.
            let weight = cache::weigh(context.sized());
            return self.dispatch_kept(local, operation, (context, weight), run_one);
        };
        match run_guarded(kernel, way.settled.workspace, way.settled.transforms, scratch, run_one) {
            None => {
                thread::with(|thread| thread.give_back(local));
                Ok(())
            }
            Some(error) => {
                let kernel = way.kernel.clone();
                self.recover_known(local, operation, context, kernel, error, run_one)
            }
        }
    }

    /// Runs a call that is not the thread's last one: as the thread or the shared table remember it, or else
    /// [slowly](Shared::dispatch_slowly).
    #[inline(never)]
    fn dispatch_kept(
        &self,
        local: &'static mut Local,
        operation: &'static OperationInfo,
        (context, weight): (&Context, u64),
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let mut taken = Taken::new(Some(local));
        let local = taken.get();
        let settled = self.look_up(local, operation, context, weight);
        let (Some(settled), Local { world: Some(world), scratch, .. }) = (settled, &mut *local) else {
            return self.dispatch_slowly(&mut taken, operation, context, run_one);
        };
        let Some(kernel) = world.registry.compiled(settled.kernel) else { return Err(no_kernels(operation)) };
        match run_guarded(kernel, settled.workspace, settled.transforms, scratch, run_one) {
            None => Ok(()),
            Some(error) => {
                let trouble = Trouble::new(world.registry.shared(settled.kernel), error);
                self.recover(local, operation, context, trouble, run_one)
            }
        }
    }

    /// What was decided for a call, if the thread or the shared table knows it and nothing special is asked for. It has a
    /// frame of its own, because what it keeps at hand and what running a kernel needs do not fit together.
    #[inline(never)]
    fn look_up(
        &self,
        local: &mut Local,
        operation: &'static OperationInfo,
        context: &Context,
        weight: u64,
    ) -> Option<Settled> {
        if local.generation != self.published.number() || local.hits >= local.patience {
            return None;
        }
        let Local { world: Some(world), recent, tally, hits, .. } = local else { return None };
        let change = thread_scope::of_thread();
        let mode = change.apply(world.mode);
        let (slot, generation) = (operation.slot(), world.generation);
        let is_careful = world.is_careful(slot);
        if !world.is_plain || mode.laid() != 0 || is_careful && world.health.poll_due() {
            return None;
        }
        let head = cache::head(slot, mode);
        let number = cache::number(head, weight);
        let mut ways = recent.of(slot);
        if let Some(way) = ways.as_deref_mut().and_then(|ways| ways.find(number, generation, change, context))
        {
            *hits += 1;
            return Some(way.settled);
        }
        let (settled, lasts) = match world.decisions.known.find(number, head, context.words()) {
            Some(settled) => (settled, true),
            None => learn(world, world.table(operation)?, number, context, mode)?,
        };
        if is_careful && world.must_ask(settled.kernel) {
            return None;
        }
        tally.selections += 1;
        tally.executions += 1;
        if tally.is_due() {
            tally.tell(*hits, &world.watching.telemetry);
        }
        // What a thread remembers is found without a look at health.
        if lasts && !is_careful && ways.is_none_or(|ways| ways.wants(number)) {
            recent.remember(world, world.table(operation)?, (number, context, change), settled);
        }
        Some(settled)
    }

    #[cold]
    #[inline(never)]
    fn recover_known(
        &self,
        local: &'static mut Local,
        operation: &'static OperationInfo,
        context: &Context,
        kernel: Option<Arc<CompiledKernel>>,
        error: Box<KernelError>,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let trouble = Trouble::new(kernel, error);
        self.recover(Taken::new(Some(local)).get(), operation, context, trouble, run_one)
    }

    /// Runs a call whatever is asked for.
    #[inline(never)]
    fn dispatch_slowly(
        &self,
        taken: &mut Taken,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let local = taken.get();
        local.refresh(&self.published);
        if local.hits >= local.patience {
            local.tell();
            local.hits = 0;
            local.tally.restart();
            self.expire();
            local.refresh(&self.published);
        }
        if local.world.as_ref().is_some_and(|world| world.is_troubled() && world.health.poll()) {
            local.refresh(&self.published);
        }
        let trouble = {
            let Local { world: Some(world), recent, scratch, tally, hits, .. } = local else {
                return Err(no_kernels(operation));
            };
            let telemetry = &world.watching.telemetry;
            tally.selections += 1;
            if tally.is_due() {
                tally.tell(*hits, telemetry);
            }
            if !world.devices.are_real() {
                return Err(imagined(operation));
            }
            let change = thread_scope::of_thread();
            let mode = change.apply(world.mode);
            let scoped = world.in_scope(mode);
            let world = scoped.as_deref().unwrap_or(world);
            let Some(table) = world.table(operation) else { return Err(no_kernels(operation)) };
            let found = telemetry.select(
                world.watch,
                operation,
                || self.find(world, table, context, mode),
                |found| {
                    let kernel = world.registry.compiled(found.choice().kernel);
                    kernel.map(|kernel| kernel.spec().id.clone()).unwrap_or_default()
                },
            )?;
            tally.executions += 1;
            let Choice { kernel: index, workspace, transforms } = found.choice();
            let Some(kernel) = world.registry.compiled(index) else {
                return Err(no_kernels(operation));
            };
            let bytes = workspace.bytes(kernel, context);
            let (slot, is_careful) = (operation.slot(), world.is_careful(operation.slot()));
            if let Found::Kept(entry) = &found
                && !(is_careful || world.watch.every_call())
                && world.lasts(entry)
            {
                let number = cache::number(cache::head(slot, mode), cache::weigh(context.sized()));
                if recent.of(slot).is_none_or(|ways| ways.wants(number)) {
                    let settled = Settled { workspace: bytes, kernel: index, transforms };
                    recent.remember(world, table, (number, context, change), settled);
                }
            }
            let outcome = if is_careful {
                let mut call = Call::new(world, table, context, mode);
                call.takes_open = matches!(found, Found::LastResort(_, Resort::Open));
                run_admitted(&call, kernel, bytes, transforms, scratch, run_one)
            } else {
                run_watched(world, kernel, bytes, transforms, scratch, run_one)
            };
            match outcome {
                None => {
                    if matches!(found, Found::LastResort(_, Resort::Cold)) {
                        self.mark_warm(&kernel.spec().id, operation, context);
                    }
                    return Ok(());
                }
                Some(error) => {
                    let kernel = world.registry.shared(index);
                    if is_careful { Trouble::recorded(kernel, error) } else { Trouble::new(kernel, error) }
                }
            }
        };
        self.recover(local, operation, context, trouble, run_one)
    }

    /// The decision for a call: the one that is kept, or a new one.
    pub fn find<'w>(
        &self,
        world: &'w World,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
    ) -> Result<Found<'w>, Error> {
        let mut key = CellKey::EMPTY;
        if !(world.keeps && key.fill(table, context, mode)) {
            world.watching.telemetry.metrics.misses.fetch_add(1, Ordering::Relaxed);
            let call = Call::new(world, table, context, mode);
            let Some(decision) = decide::decide(&call) else { return self.find_resort(&call) };
            self.observer.decided(&call, decision.position);
            return Ok(Found::Fresh(decision));
        }
        let kept = || world.decisions.get(&key, |entry| stands(entry, world, table, context, mode));
        match kept() {
            Some(entry) => Ok(Found::Kept(entry)),
            None => self.find_afresh(world, table, context, mode, &key, kept),
        }
    }

    #[cold]
    fn find_afresh<'w>(
        &self,
        world: &'w World,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
        key: &CellKey,
        kept: impl Fn() -> Option<&'w Entry>,
    ) -> Result<Found<'w>, Error> {
        let nested = thread::with(|thread| thread.deciding.replace(true));
        let _alone = (!nested).then(|| world.decisions.decide_alone(key));
        let _deciding = Deciding { nested };
        if let Some(entry) = kept() {
            return Ok(Found::Kept(entry));
        }
        world.watching.telemetry.metrics.misses.fetch_add(1, Ordering::Relaxed);
        let call = Call::new(world, table, context, mode);
        let Some(decision) = decide::decide(&call) else { return self.find_resort(&call) };
        self.observer.decided(&call, decision.position);
        match world.decisions.insert(key, &decision) {
            Some(entry) => Ok(Found::Kept(entry)),
            None => {
                self.make_room(world.generation);
                Ok(Found::Fresh(decision))
            }
        }
    }

    /// What a call takes that nothing can run otherwise, else why nothing can run it.
    #[cold]
    fn find_resort<'w>(&self, call: &Call<'_>) -> Result<Found<'w>, Error> {
        let Some((decision, resort)) = decide::decide_resort(call) else { return Err(decide::refusal(call)) };
        self.observer.decided(call, decision.position);
        Ok(Found::LastResort(decision, resort))
    }

    /// After a failure: remembers it, and tries the others, best first, where that is allowed.
    #[cold]
    pub(super) fn recover(
        &self,
        local: &mut Local,
        operation: &'static OperationInfo,
        context: &Context,
        trouble: Trouble,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let Some(world) = local.world.clone() else { return Err(no_kernels(operation)) };
        let mode = thread_scope::of_thread().apply(world.mode);
        let world = world.in_scope(mode).unwrap_or(world);
        let metrics = &world.watching.telemetry.metrics;
        metrics.failed(trouble.error.cause);
        let (Some(table), Some(kernel)) = (world.table(operation), trouble.kernel.as_deref()) else {
            return Err(no_kernels(operation));
        };
        let first = kernel.spec().id.clone();
        forget_memory(&world, &trouble.error);
        if !trouble.recorded {
            record(&Call::new(&world, table, context, mode), kernel, &trouble.error);
        }
        let mut reasons = vec![trouble.error.reason.clone()];
        let mut may_go_on = self.may_go_on(&world, operation, &trouble.error, &mut reasons);
        let mut tried = vec![first.clone()];
        // What failed has just changed the world; the others are looked at in the new one.
        let world = self.published.load();
        let mode = thread_scope::of_thread().apply(world.mode);
        let world = world.in_scope(mode).unwrap_or(world);
        let Some(table) = world.table(operation) else { return Err(no_kernels(operation)) };
        let mut call = Call::new(&world, table, context, mode);
        let mut others = if may_go_on { decide::possible(&call) } else { Vec::new() };
        let closed = others.len();
        if may_go_on {
            others.extend(decide::open(&call));
        }
        for (number, ranked) in others.into_iter().enumerate() {
            // Kernels whose circuit is open come last.
            call.takes_open = number >= closed;
            let candidate = table.candidates.get(usize::from(ranked.position));
            let Some(kernel) = candidate.and_then(|one| world.registry.compiled(one.kernel)) else {
                continue;
            };
            let id = &kernel.spec().id;
            if !may_go_on || tried.contains(id) {
                continue;
            }
            tried.push(id.clone());
            metrics.executions.fetch_add(1, Ordering::Relaxed);
            let bytes = crate::selection::filter::workspace(kernel, &call.values).unwrap_or(0);
            match run_admitted(&call, kernel, bytes, ranked.transforms, &mut local.scratch, run_one) {
                None => {
                    self.note_fallback(&world, operation, &first, id, &reasons);
                    return Ok(());
                }
                Some(error) => {
                    metrics.failed(error.cause);
                    reasons.push(error.reason.clone());
                    forget_memory(&world, &error);
                    may_go_on = self.may_go_on(&world, operation, &error, &mut reasons);
                }
            }
        }
        Err(Error::KernelExecution { operation: operation.name.to_string(), kernel: first, reasons })
    }

    /// Whether another kernel may try after a failure; if not, why is added.
    pub(super) fn may_go_on(
        &self,
        world: &World,
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
        if !world.policy.fallback_enabled.value {
            let source = &world.policy.fallback_enabled.source;
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

/// Whether a decision is right for a call of its cell.
#[inline(never)]
fn stands(entry: &Entry, world: &World, table: &OperationTable, context: &Context, mode: Mode) -> bool {
    guard::all_stand(entry.guards(), world, table, context, mode)
}

/// What the decision of a call's cell means for the call, and whether that lasts. If so, the call is known from now on.
#[inline(never)]
fn learn(
    world: &World,
    table: &OperationTable,
    number: u64,
    context: &Context,
    mode: Mode,
) -> Option<(Settled, bool)> {
    let mut key = CellKey::EMPTY;
    if !key.fill(table, context, mode) {
        return None;
    }
    let entry = world.decisions.get(&key, |entry| stands(entry, world, table, context, mode))?;
    let kernel = world.registry.compiled(entry.kernel)?;
    let workspace = entry.workspace.bytes(kernel, context);
    let settled = Settled { workspace, kernel: entry.kernel, transforms: entry.transforms };
    let lasts = world.lasts(entry);
    if lasts {
        let (head, words) = (cache::head(table.info.slot(), mode), table.telling(context));
        world.decisions.known.keep(number, head, words, settled);
    }
    Some((settled, lasts))
}

/// A kernel that did not run to its end.
pub(super) struct Trouble {
    kernel: Option<Arc<CompiledKernel>>,
    error: KernelError,
    recorded: bool,
}

impl Trouble {
    /// A failure that health does not know of yet.
    #[cold]
    #[expect(clippy::boxed_local, reason = "it comes in a box, so that the way of a hit stays narrow")]
    fn new(kernel: Option<Arc<CompiledKernel>>, error: Box<KernelError>) -> Trouble {
        Trouble { kernel, error: *error, recorded: false }
    }

    /// A failure that health was told of.
    #[cold]
    #[expect(clippy::boxed_local, reason = "as above")]
    pub fn recorded(kernel: Option<Arc<CompiledKernel>>, error: Box<KernelError>) -> Trouble {
        Trouble { kernel, error: *error, recorded: true }
    }
}

/// What was taken from a thread; it goes back whatever happens.
pub(super) struct Taken(Option<&'static mut Local>);

impl Taken {
    /// To be given back.
    pub fn new(local: Option<&'static mut Local>) -> Taken {
        Taken(local)
    }

    /// What was taken; something else if nothing was there.
    pub fn get(&mut self) -> &mut Local {
        self.0.get_or_insert_with(|| thread::with(Thread::take_other))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(local) = self.0.take() {
            thread::with(|thread| thread.give_back(local));
        }
    }
}

struct Deciding {
    nested: bool,
}

impl Drop for Deciding {
    fn drop(&mut self) {
        thread::with(|thread| thread.deciding.set(self.nested));
    }
}

pub(super) fn no_kernels(operation: &OperationInfo) -> Error {
    Error::NoKernel { operation: operation.name.to_string(), candidates: Vec::new() }
}

pub(super) fn imagined(operation: &OperationInfo) -> Error {
    let reason = Reason::new(ReasonCode::DeviceAbsent)
        .message("this engine imagines its device: it can explain a call, not run it");
    Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] }
}

/// Why a kernel did not run to its end; `None` when it did. Boxed, because nearly always there is nothing to carry.
pub(super) type Outcome = Option<Box<KernelError>>;

/// Runs a kernel; a panic inside it becomes its failure.
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

/// The same, observed as the operator wants it.
fn run_watched(
    world: &World,
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Outcome {
    let mut run = || run_guarded(kernel, workspace, transforms, scratch, run_one);
    if world.watch == Watch::default() {
        return run();
    }
    let watching = &world.watching;
    let run = || run().map_or(Ok(()), |error| Err(*error));
    watching.telemetry.run(watching, world.watch, kernel.info, &kernel.spec().id, run).err().and_then(failed)
}

#[cold]
#[inline(never)]
fn failed(error: KernelError) -> Outcome {
    Some(Box::new(error))
}

#[cold]
#[inline(never)]
fn panicked(kernel: &CompiledKernel, panic: &(dyn std::any::Any + Send)) -> KernelError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a panic without a message");
    let message = format!("{}: {text}", kernel.spec().id);
    KernelError::because(Reason::new(ReasonCode::KernelPanicked).message(message))
}

/// Asks health for leave first and tells it the outcome.
pub(super) fn run_admitted(
    call: &Call<'_>,
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Outcome {
    let permit = match call.world.health.admit(call.subject(kernel)) {
        Ok(permit) => Some(permit),
        Err(refusal) if call.takes_open && refusal.yields_to_last_resort(kernel.is_reference()) => None,
        Err(refusal) => {
            let reason = Reason::new(ReasonCode::CircuitHalfOpenBusy).message(refusal.to_string());
            return Some(Box::new(KernelError::because(reason).before_writing()));
        }
    };
    let outcome = run_watched(call.world, kernel, workspace, transforms, scratch, run_one);
    match (&outcome, permit) {
        (None, Some(permit)) => permit.succeeded(),
        (Some(error), Some(permit)) => permit.failed(Failure::of(error, &told(error))),
        // A call past an open circuit decides nothing: probes do.
        (_, None) => {}
    }
    outcome
}

/// After an allocation that failed, what was believed of the device's memory is not believed any more.
fn forget_memory(world: &World, error: &KernelError) {
    if error.reason.code == ReasonCode::OutOfMemory {
        world.blocks.forget();
    }
}

/// Tells health of a failure.
pub(super) fn record(call: &Call<'_>, kernel: &CompiledKernel, error: &KernelError) {
    if let Ok(permit) = call.world.health.admit(call.subject(kernel)) {
        permit.failed(Failure::of(error, &told(error)));
    }
}

/// What is remembered of a failure: its sentence, with a code that says more than that it failed.
pub(super) fn told(error: &KernelError) -> String {
    match error.reason.code {
        ReasonCode::KernelFailed => error.reason.sentence(),
        _ => error.reason.to_string(),
    }
}
