//! Decisions that a caller keeps: one kernel for calls of the same sizes, dtypes and params, until the caller asks again.
//!
//! Such a call does not select. Its kernel must still be one that may run: what the operator forbids, what has failed too
//! often and what does not fit a capture is refused, never replaced by another kernel behind the caller's back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Engine;
use super::dispatch::{self, RunOne, Taken};
use crate::compiled::CompiledKernel;
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::filter;
use crate::selection::thread;
use lz_core::context::{Context, Field, FieldKind};
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::mode::ModeChange;
use lz_core::operation::OperationInfo;
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};

/// A decision for calls of one operation that look alike.
#[derive(Debug)]
pub struct Pinned {
    operation: &'static OperationInfo,
    context: Context,
    kernel: Arc<CompiledKernel>,
    workspace: u64,
    transforms: Transforms,
    /// How its thread changed the mode of calls when it was made.
    change: ModeChange,
    /// The generation in which the kernel was last seen to be allowed to run, when nothing special was asked for; 0 for none.
    seen: AtomicU64,
}

impl Pinned {
    /// Which operation it is for.
    pub fn operation(&self) -> &'static OperationInfo {
        self.operation
    }

    /// The kernel that it fixes.
    pub fn entry(&self) -> &KernelEntry {
        &self.kernel.entry
    }

    /// What a call has that is not as it was planned. How tensors lie in memory may differ.
    fn differences(&self, context: &Context) -> Vec<Reason> {
        let differs = |field: &&Field| self.context.raw(field.store) != context.raw(field.store);
        let fields = self.operation.fields.iter().filter(|field| field.kind != FieldKind::Strides);
        let reasons = fields.filter(differs).map(|field| {
            let (planned, found) = (text(field, &self.context), text(field, context));
            let reason = Reason::new(ReasonCode::PlanMismatch)
                .message(format!("{} was planned as {planned}, and is {found}", field.name))
                .required(planned)
                .found(found);
            match field.kind {
                FieldKind::Axis { .. } => reason.axis(field.name.as_ref()),
                _ => reason.argument(field.name.as_ref()),
            }
        });
        reasons.collect()
    }
}

fn text(field: &Field, context: &Context) -> String {
    let raw = context.raw(field.store);
    match &field.kind {
        FieldKind::Axis { .. } | FieldKind::Int => (raw as i64).to_string(),
        FieldKind::Float => f64::from_bits(raw).to_string(),
        FieldKind::Bool | FieldKind::Given => (raw != 0).to_string(),
        FieldKind::Enum(cases) => cases.get(raw as usize).map(ToString::to_string).unwrap_or_default(),
        FieldKind::DType => {
            lz_core::context::dtype_of(raw).map_or("none", lz_core::DType::long_name).to_owned()
        }
        FieldKind::Strides | FieldKind::Place | FieldKind::Digest => format!("{raw:x}"),
    }
}

impl Engine {
    /// Decides for calls like this one. `accept` hears the kernel, and when it cannot accept it, the next one; nothing is run.
    pub fn pin(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        accept: &mut dyn FnMut(&KernelEntry) -> Result<(), KernelError>,
    ) -> Result<Pinned, Error> {
        let change = thread::with(|thread| thread.change.get());
        let (world, mode) = self.shared.world_of_thread();
        if !world.devices.are_real() {
            return Err(dispatch::imagined(operation));
        }
        let Some(table) = world.table(operation) else { return Err(dispatch::no_kernels(operation)) };
        let first = self.shared.find(&world, table, context, mode)?.choice().kernel;
        let call = Call::new(&world, table, context, mode);
        let others = || {
            let position = |one: decide::Ranked| table.candidates.get(usize::from(one.position));
            decide::possible(&call).into_iter().filter_map(position).map(|candidate| candidate.kernel)
        };
        let others = std::iter::once_with(others).flatten().filter(|kernel| *kernel != first);
        let mut reasons = Vec::new();
        for kernel in std::iter::once(first).chain(others) {
            let Some(kernel) = world.registry.shared(kernel) else { continue };
            match accept(&kernel.entry) {
                Ok(()) => {
                    return Ok(Pinned {
                        operation,
                        context: *context,
                        workspace: filter::workspace(&kernel, &call.values).unwrap_or(0),
                        transforms: filter::transforms(&call, &kernel.facts, || Some(&*kernel)),
                        kernel,
                        change,
                        seen: AtomicU64::new(if world.is_quick(operation) { world.generation } else { 0 }),
                    });
                }
                Err(error) => {
                    reasons.push(error.reason.clone());
                    if !self.shared.may_go_on(&world, operation, &error, &mut reasons) {
                        break;
                    }
                }
            }
        }
        let kernel = world.registry.compiled(first).map(|kernel| kernel.spec().id.clone());
        let operation = operation.name.to_string();
        Err(Error::KernelExecution { operation, kernel: kernel.unwrap_or_default(), reasons })
    }

    /// Runs a call with the kernel that was decided before, and with no other.
    #[inline]
    pub fn run_pinned(
        &self,
        pinned: &Pinned,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let (local, change) = thread::with(|thread| (thread.take(), thread.change.get()));
        let mut taken = Taken::new(local);
        let local = taken.get();
        let known = pinned.seen.load(Ordering::Relaxed) == self.shared.published.number();
        if !known || change != pinned.change || *context != pinned.context {
            return self.run_examined(pinned, context, change, run_one);
        }
        let (kernel, transforms) = (&pinned.kernel, pinned.transforms);
        local.tally.executions = local.tally.executions.saturating_add(1);
        match dispatch::run_guarded(kernel, pinned.workspace, transforms, &mut local.scratch, run_one) {
            None => Ok(()),
            Some(error) => Err(self.failed_pinned(pinned, context, &error)),
        }
    }

    /// The same for a call that differs from the one that was planned, or when something has changed since.
    #[cold]
    #[inline(never)]
    fn run_examined(
        &self,
        pinned: &Pinned,
        context: &Context,
        change: ModeChange,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let operation = pinned.operation;
        let reasons = pinned.differences(context);
        if !reasons.is_empty() {
            return Err(Error::Validation { operation: operation.name.to_string(), reasons });
        }
        let (world, mode) = self.shared.world_of_thread();
        let Some(table) = world.table(operation) else { return Err(dispatch::no_kernels(operation)) };
        let mut call = Call::new(&world, table, context, mode);
        // A new plan would have to take a kernel whose circuit is open as well.
        call.takes_open = world.is_careful(operation.slot()) && decide::possible(&call).is_empty();
        let kernel = &pinned.kernel;
        let id = &kernel.spec().id;
        let mut reasons: Vec<Reason> = Vec::new();
        match table.position_of(&world.registry, id) {
            Some(position) => filter::examine(&call, position, &mut reasons),
            None => reasons.push(Reason::new(ReasonCode::KernelUnknown)),
        }
        // It may compile inside the call: whoever planned has accepted that.
        reasons.retain(|reason| reason.code != ReasonCode::JitCold);
        if !reasons.is_empty() {
            reasons.insert(0, Reason::new(ReasonCode::PlanStale));
            let candidates = vec![(id.clone(), reasons)];
            return Err(Error::NoKernel { operation: operation.name.to_string(), candidates });
        }
        if world.is_quick(operation) && change == pinned.change && *context == pinned.context {
            pinned.seen.store(world.generation, Ordering::Relaxed);
        }
        let metrics = &world.watching.telemetry.metrics;
        metrics.executions.fetch_add(1, Ordering::Relaxed);
        let bytes = filter::workspace(kernel, &call.values).unwrap_or(0);
        let transforms = filter::transforms(&call, &kernel.facts, || Some(&**kernel));
        let mut scratch = lz_core::run::Scratch::default();
        match dispatch::run_admitted(&call, kernel, bytes, transforms, &mut scratch, run_one) {
            None => Ok(()),
            Some(error) => {
                metrics.failed(error.cause);
                Err(failure(pinned, &error))
            }
        }
    }

    /// Tells health of a failure that it has not seen.
    #[cold]
    fn failed_pinned(&self, pinned: &Pinned, context: &Context, error: &KernelError) -> Error {
        let (world, mode) = self.shared.world_of_thread();
        world.watching.telemetry.metrics.failed(error.cause);
        if let Some(table) = world.table(pinned.operation) {
            dispatch::record(&Call::new(&world, table, context, mode), &pinned.kernel, error);
        }
        failure(pinned, error)
    }
}

fn failure(pinned: &Pinned, error: &KernelError) -> Error {
    let (operation, kernel) = (pinned.operation.name.to_string(), pinned.kernel.spec().id.clone());
    Error::KernelExecution { operation, kernel, reasons: vec![error.reason.clone()] }
}
