//! Running a call: find the decision, run its kernel, and when that fails say so, remember it and try the next one.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use super::Shared;
use super::call::Call;
use super::decide::{self, Decision};
use super::guard;
use super::inline::Local;
use super::table::OperationTable;
use super::world::World;
use crate::cache::{CellKey, Entry, Inserted};
use crate::compiled::CompiledKernel;
use crate::context::Context;
use crate::error::Error;
use crate::health::{Failure, FailureKind};
use crate::kernel::{KernelEntry, KernelError, Severity};
use crate::mode::{self, Mode};
use crate::operation::OperationInfo;
use crate::plan::Transforms;
use crate::reason::{Reason, ReasonCategory, ReasonCode};
use crate::run::{Run, Scratch};

/// How generated code runs one kernel.
pub(crate) type RunOne<'r> = dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + 'r;

thread_local! {
    /// Whether this thread is deciding: whoever is asked for evidence must not wait for itself.
    static DECIDING: Cell<bool> = const { Cell::new(false) };
}

/// A decision, kept or made for this call alone.
pub(crate) enum Found<'w> {
    Kept(&'w Entry),
    Fresh(Decision),
}

impl Found<'_> {
    pub fn decision(&self) -> &Decision {
        match self {
            Found::Kept(entry) => &entry.decision,
            Found::Fresh(decision) => decision,
        }
    }
}

impl Shared {
    #[inline]
    pub fn dispatch(
        &self,
        local: &mut Local,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        local.refresh(&self.published);
        let Local { generation, careful, ground, decisions, scratch, hits, patience, .. } = local;
        if !*careful && *hits < *patience {
            let mode = mode::of_thread().apply(*ground);
            if let Some(way) = decisions.find(operation.slot(), *generation, mode, context)
                && let Some(kernel) = &way.kernel
            {
                *hits += 1;
                let bytes = way.workspace.bytes(kernel, context);
                return match run_guarded(kernel, bytes, way.transforms, scratch, run_one) {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        let trouble = Trouble { kernel: way.index, error, recorded: false };
                        self.recover(local, operation, context, trouble, run_one)
                    }
                };
            }
        }
        self.dispatch_slowly(local, operation, context, run_one)
    }

    #[inline(never)]
    fn dispatch_slowly(
        &self,
        local: &mut Local,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        if local.hits >= local.patience {
            local.tell();
            local.hits = 0;
            local.tally.restart();
            self.expire();
            local.refresh(&self.published);
        }
        if local.world.as_ref().is_some_and(|world| world.careful && world.health.poll()) {
            local.refresh(&self.published);
        }
        let trouble = {
            let Local { world: Some(world), decisions, scratch, tally, hits, .. } = local else {
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
            let mode = mode::of_thread().apply(world.mode);
            let scoped = world.in_scope(mode);
            let world = scoped.as_deref().unwrap_or(world);
            let Some(table) = world.table(operation) else { return Err(no_kernels(operation)) };
            let found = telemetry.select(
                world.watch,
                operation,
                || self.find(world, table, context, mode),
                |found| {
                    let kernel = world.registry.compiled(found.decision().kernel);
                    kernel.map(|kernel| kernel.spec().id.clone()).unwrap_or_default()
                },
            )?;
            tally.executions += 1;
            let decision = found.decision();
            if let Found::Kept(entry) = &found {
                decisions.remember(world, table, context, mode, &entry.decision);
            }
            let Some(kernel) = world.registry.compiled(decision.kernel) else {
                return Err(no_kernels(operation));
            };
            let bytes = decision.workspace.bytes(kernel, context);
            if world.careful {
                let call = Call::new(world, table, context, mode);
                match run_admitted(&call, kernel, bytes, decision.transforms, scratch, run_one) {
                    Ok(()) => return Ok(()),
                    Err(error) => Trouble { kernel: decision.kernel, error, recorded: true },
                }
            } else {
                match run_watched(world, kernel, bytes, decision.transforms, scratch, run_one) {
                    Ok(()) => return Ok(()),
                    Err(error) => Trouble { kernel: decision.kernel, error, recorded: false },
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
        let keeps = world.policy.cache.value.enabled && world.level.allows_cache();
        let key = if keeps { CellKey::of(table, context, mode) } else { None };
        let Some(key) = key else {
            world.watching.telemetry.metrics.misses.fetch_add(1, Ordering::Relaxed);
            let call = Call::new(world, table, context, mode);
            let Some(decision) = decide::decide(&call) else { return Err(decide::refusal(&call)) };
            self.journal.note(&call, decision.position);
            return Ok(Found::Fresh(decision));
        };
        let hash = key.hash(table.axes.len());
        let kept = || {
            world
                .decisions
                .get(&key, hash, |decision| guard::all_stand(&decision.guards, world, table, context, mode))
        };
        match kept() {
            Some(entry) => Ok(Found::Kept(entry)),
            None => self.find_afresh(world, table, context, mode, key, hash, kept),
        }
    }

    #[cold]
    #[expect(clippy::too_many_arguments, reason = "the parts of one look-up, split where it gets slow")]
    fn find_afresh<'w>(
        &self,
        world: &'w World,
        table: &OperationTable,
        context: &Context,
        mode: Mode,
        key: CellKey,
        hash: u64,
        kept: impl Fn() -> Option<&'w Entry>,
    ) -> Result<Found<'w>, Error> {
        let nested = DECIDING.replace(true);
        let _alone = (!nested).then(|| world.decisions.decide_alone(hash));
        let _deciding = Deciding { nested };
        if let Some(entry) = kept() {
            return Ok(Found::Kept(entry));
        }
        world.watching.telemetry.metrics.misses.fetch_add(1, Ordering::Relaxed);
        let call = Call::new(world, table, context, mode);
        let Some(decision) = decide::decide(&call) else { return Err(decide::refusal(&call)) };
        self.journal.note(&call, decision.position);
        match world.decisions.insert(Box::new(Entry { key, decision }), hash) {
            Inserted::Kept(entry) => Ok(Found::Kept(entry)),
            Inserted::Full(entry) => {
                self.make_room(world.generation);
                Ok(Found::Fresh(entry.decision))
            }
        }
    }

    /// After a failure: remembers it, and tries the others, best first, where that is allowed.
    #[cold]
    fn recover(
        &self,
        local: &mut Local,
        operation: &'static OperationInfo,
        context: &Context,
        trouble: Trouble,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let Some(world) = local.world.clone() else { return Err(no_kernels(operation)) };
        let mode = mode::of_thread().apply(world.mode);
        let world = world.in_scope(mode).unwrap_or(world);
        let metrics = &world.watching.telemetry.metrics;
        metrics.failures.fetch_add(1, Ordering::Relaxed);
        let (Some(table), Some(kernel)) = (world.table(operation), world.registry.compiled(trouble.kernel))
        else {
            return Err(no_kernels(operation));
        };
        let first = kernel.spec().id.clone();
        if !trouble.recorded {
            record(&Call::new(&world, table, context, mode), kernel, &trouble.error);
        }
        let mut reasons = vec![trouble.error.reason.clone()];
        let mut may_go_on = self.may_go_on(&world, operation, &trouble.error, &mut reasons);
        let mut tried = vec![first.clone()];
        // What failed has just changed the world; the others are looked at in the new one.
        let world = self.published.load();
        let mode = mode::of_thread().apply(world.mode);
        let world = world.in_scope(mode).unwrap_or(world);
        let Some(table) = world.table(operation) else { return Err(no_kernels(operation)) };
        let call = Call::new(&world, table, context, mode);
        for ranked in if may_go_on { decide::possible(&call) } else { Vec::new() } {
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
            let bytes = crate::filter::workspace(kernel, call.values.as_slice()).unwrap_or(0);
            match run_admitted(&call, kernel, bytes, ranked.transforms, &mut local.scratch, run_one) {
                Ok(()) => {
                    self.note_fallback(&world, operation, &first, id, &reasons);
                    return Ok(());
                }
                Err(error) => {
                    metrics.failures.fetch_add(1, Ordering::Relaxed);
                    reasons.push(error.reason.clone());
                    may_go_on = self.may_go_on(&world, operation, &error, &mut reasons);
                }
            }
        }
        Err(Error::KernelExecution { operation: operation.name.to_string(), kernel: first, reasons })
    }

    /// Whether another kernel may try after a failure; if not, why is added.
    fn may_go_on(
        &self,
        world: &World,
        operation: &'static OperationInfo,
        error: &KernelError,
        reasons: &mut Vec<Reason>,
    ) -> bool {
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

/// A kernel that did not run to its end.
struct Trouble {
    kernel: u32,
    error: KernelError,
    recorded: bool,
}

struct Deciding {
    nested: bool,
}

impl Drop for Deciding {
    fn drop(&mut self) {
        DECIDING.set(self.nested);
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

/// Runs a kernel; a panic inside it becomes its failure.
#[inline]
pub(super) fn run_guarded(
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Result<(), KernelError> {
    let mut run = Run::new(scratch, workspace);
    run.transforms = transforms;
    match catch_unwind(AssertUnwindSafe(|| run_one(&kernel.entry, &mut run))) {
        Ok(outcome) => outcome,
        Err(panic) => Err(panicked(kernel, panic.as_ref())),
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
) -> Result<(), KernelError> {
    let run = || run_guarded(kernel, workspace, transforms, scratch, run_one);
    let watching = &world.watching;
    watching.telemetry.run(watching, world.watch, kernel.info, &kernel.spec().id, run)
}

#[cold]
fn panicked(kernel: &CompiledKernel, panic: &(dyn std::any::Any + Send)) -> KernelError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a panic without a message");
    let message = format!("{}: {text}", kernel.spec().id);
    KernelError::because(Reason::new(ReasonCode::KernelPanicked).message(message))
}

/// Asks health for leave first and tells it the outcome.
fn run_admitted(
    call: &Call<'_>,
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Result<(), KernelError> {
    let permit = call.world.health.admit(call.subject(kernel)).map_err(|refusal| {
        let reason = Reason::new(ReasonCode::CircuitHalfOpenBusy).message(refusal.to_string());
        KernelError::because(reason).before_writing()
    })?;
    let outcome = run_watched(call.world, kernel, workspace, transforms, scratch, run_one);
    match &outcome {
        Ok(()) => permit.succeeded(),
        Err(error) => permit.failed(Failure { kind: kind(error), message: &error.reason.sentence() }),
    }
    outcome
}

fn record(call: &Call<'_>, kernel: &CompiledKernel, error: &KernelError) {
    if let Ok(permit) = call.world.health.admit(call.subject(kernel)) {
        permit.failed(Failure { kind: kind(error), message: &error.reason.sentence() });
    }
}

fn kind(error: &KernelError) -> FailureKind {
    match error.severity {
        Severity::Device => FailureKind::DeviceLost,
        Severity::Backend => FailureKind::BackendFatal,
        Severity::Call if error.reason.code == ReasonCode::OutOfMemory => FailureKind::OutOfMemory,
        Severity::Call if error.reason.code.category() == ReasonCategory::Validation => FailureKind::Caller,
        Severity::Call => FailureKind::Kernel,
    }
}
