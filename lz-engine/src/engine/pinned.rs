//! Pinned decisions: one kernel for calls with the same sizes, dtypes and params.
//!
//! A pinned call does no selection, but its kernel is still checked: if policy denies it, its circuit is open or it cannot be
//! captured, the call is refused. It never falls back to another kernel.

use std::sync::Arc;

use super::Engine;
use super::dispatch::{self, RunOne, TakenState};
use super::run_kernel::{record, run_admitted, run_guarded};
use crate::compiled::CompiledKernel;
use crate::selection::call::Call;
use crate::selection::checked_generation::CheckedGeneration;
use crate::selection::decide;
use crate::selection::filter;
use crate::selection::thread;
use lz_core::context::{Context, Field, FieldKind};
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::mode::ModeOverride;
use lz_core::operation::OperationInfo;
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};

/// A decision for calls of one operation with the same signature.
#[derive(Debug)]
pub struct Pinned {
    operation: &'static OperationInfo,
    context: Context,
    kernel: Arc<CompiledKernel>,
    workspace: u64,
    transforms: Transforms,
    /// The thread's mode override when it was made.
    change: ModeOverride,
    /// When the kernel was last checked and needed no permit or observation.
    checked: CheckedGeneration,
}

impl Pinned {
    /// The operation.
    pub fn operation(&self) -> &'static OperationInfo {
        self.operation
    }

    /// The pinned kernel.
    pub fn entry(&self) -> &KernelEntry {
        &self.kernel.entry
    }

    /// The conversions of the planned call.
    pub fn transforms(&self) -> Transforms {
        self.transforms
    }

    /// How a call differs from the planned one. Strides and statistics may differ: they change the speed of a kernel at most.
    fn differences(&self, context: &Context) -> Vec<Reason> {
        let differs = |field: &&Field| self.context.raw(field.store) != context.raw(field.store);
        let is_fixed =
            |field: &&Field| !matches!(field.kind, FieldKind::Strides | FieldKind::Statistic { .. });
        let fields = self.operation.fields.iter().filter(is_fixed);
        let reasons = fields.filter(differs).map(|field| {
            let (planned, found) = (text(field, &self.context), text(field, context));
            let reason = Reason::new(ReasonCode::PlanMismatch)
                .message(format!("{} was planned as {planned}, but is {found}", field.name))
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
        FieldKind::Axis { .. } | FieldKind::Statistic { .. } | FieldKind::Int => (raw as i64).to_string(),
        FieldKind::Float => f64::from_bits(raw).to_string(),
        FieldKind::Bool | FieldKind::Given => (raw != 0).to_string(),
        FieldKind::Enum(cases) => cases.get(raw as usize).map(ToString::to_string).unwrap_or_default(),
        FieldKind::DType => {
            lz_core::context::dtype_of(raw).map_or("none", lz_core::DType::long_name).to_owned()
        }
        FieldKind::Strides | FieldKind::Device | FieldKind::Digest => format!("{raw:x}"),
    }
}

impl Engine {
    /// Selects a kernel for calls like this one without running it. `accept` may reject it, in which case the next best is offered.
    pub fn pin(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        accept: &mut dyn FnMut(&KernelEntry) -> Result<(), KernelError>,
    ) -> Result<Pinned, Error> {
        let change = thread::with(|thread| thread.change.get());
        let (snapshot, mode) = self.shared.thread_snapshot();
        if !snapshot.devices.are_real() {
            return Err(dispatch::simulated_device_error(operation));
        }
        let Some(table) = snapshot.table(operation) else { return Err(dispatch::no_kernels(operation)) };
        let first = self.shared.find(&snapshot, table, context, mode)?.choice().kernel;
        let call = Call::new(&snapshot, table, context, mode);
        let others = || {
            let form = |one: decide::Ranked| {
                let candidate = table.candidates.get(usize::from(one.position))?;
                Some(snapshot.registry.adapted(candidate.kernel, one.transforms))
            };
            decide::eligible(&call).into_iter().filter_map(form)
        };
        let others = std::iter::once_with(others).flatten().filter(|kernel| *kernel != first);
        let mut reasons = Vec::new();
        for kernel in std::iter::once(first).chain(others) {
            let Some(kernel) = snapshot.registry.shared(kernel) else { continue };
            match accept(&kernel.entry) {
                Ok(()) => {
                    return Ok(Pinned {
                        operation,
                        context: *context,
                        workspace: filter::workspace(&kernel, &call.values).unwrap_or(0),
                        transforms: filter::transforms(&call, &kernel.facts, || Some(&*kernel)),
                        kernel,
                        change,
                        checked: CheckedGeneration::new(
                            snapshot.has_fast_path(operation).then_some(snapshot.generation),
                        ),
                    });
                }
                Err(error) => {
                    reasons.push(error.reason.clone());
                    if !self.shared.may_fall_back(&snapshot, operation, &error, &mut reasons) {
                        break;
                    }
                }
            }
        }
        let kernel = snapshot.registry.compiled(first).map(|kernel| kernel.spec().id.clone());
        let operation = operation.name.to_string();
        Err(Error::KernelExecution { operation, kernel: kernel.unwrap_or_default(), reasons })
    }

    /// Runs a call with the pinned kernel; there is no fallback.
    #[inline]
    pub fn run_pinned(
        &self,
        pinned: &Pinned,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let (state, change) = thread::with(|thread| (thread.take(), thread.change.get()));
        let mut taken = TakenState::new(state);
        let state = taken.get();
        let known = pinned.checked.is(self.shared.published.number());
        if !known || change != pinned.change || *context != pinned.context {
            return self.run_examined(pinned, context, change, run_one);
        }
        let (kernel, transforms) = (&pinned.kernel, pinned.transforms);
        state.tally.slow_executions = state.tally.slow_executions.saturating_add(1);
        match run_guarded(kernel, pinned.workspace, transforms, &mut state.scratch, run_one) {
            None => Ok(()),
            Some(error) => Err(self.failed_pinned(pinned, context, &error)),
        }
    }

    /// The slow path: the call differs from the planned one, or the snapshot has changed.
    #[cold]
    #[inline(never)]
    fn run_examined(
        &self,
        pinned: &Pinned,
        context: &Context,
        change: ModeOverride,
        run_one: &mut RunOne<'_>,
    ) -> Result<(), Error> {
        let operation = pinned.operation;
        let reasons = pinned.differences(context);
        if !reasons.is_empty() {
            return Err(Error::Validation { operation: operation.name.to_string(), reasons });
        }
        let (snapshot, mode) = self.shared.thread_snapshot();
        let Some(table) = snapshot.table(operation) else { return Err(dispatch::no_kernels(operation)) };
        let mut call = Call::new(&snapshot, table, context, mode);
        // Re-planning would also use a kernel with an open circuit if there is no other.
        call.allow_open_circuit =
            snapshot.takes_slow_path(operation.slot()) && decide::eligible(&call).is_empty();
        let kernel = &pinned.kernel;
        let id = &kernel.spec().id;
        let mut reasons: Vec<Reason> = Vec::new();
        let registry = &snapshot.registry;
        let position = table.position_of(registry, id);
        let index = position.and_then(|position| table.candidates.get(usize::from(position)));
        let index = index.map(|candidate| candidate.kernel);
        let now = index.and_then(|index| registry.shared(index));
        match position {
            Some(position) if now.is_some_and(|now| now.has_form(kernel)) => {
                filter::examine(&call, position, &mut reasons);
            }
            Some(_) => reasons.push(
                Reason::new(ReasonCode::KernelUnknown)
                    .message(format!("{id} was replaced by another version")),
            ),
            None => reasons.push(Reason::new(ReasonCode::KernelUnknown)),
        }
        // Compiling inside the call was accepted when the plan was made.
        reasons.retain(|reason| reason.code != ReasonCode::JitCold);
        if !reasons.is_empty() {
            reasons.insert(0, Reason::new(ReasonCode::PlanStale));
            let candidates = vec![(id.clone(), reasons)];
            return Err(Error::NoKernel { operation: operation.name.to_string(), candidates });
        }
        if snapshot.has_fast_path(operation) && change == pinned.change && *context == pinned.context {
            pinned.checked.record(snapshot.generation);
        }
        let metrics = &snapshot.observation.telemetry.metrics;
        metrics.executed(kernel.spec());
        let bytes = filter::workspace(kernel, &call.values).unwrap_or(0);
        let transforms = filter::transforms(&call, &kernel.facts, || Some(&**kernel));
        // The strides may differ from those of the plan.
        let form = index.and_then(|index| registry.shared(registry.adapted(index, transforms)));
        let kernel = form.as_ref().unwrap_or(kernel);
        let mut scratch = lz_core::run::Scratch::default();
        match run_admitted(&call, kernel, bytes, transforms, &mut scratch, run_one) {
            None => Ok(()),
            Some(error) => {
                metrics.failed(error.cause);
                Err(failure(pinned, &error))
            }
        }
    }

    /// Records a failure of the fast path in health.
    #[cold]
    fn failed_pinned(&self, pinned: &Pinned, context: &Context, error: &KernelError) -> Error {
        let (snapshot, mode) = self.shared.thread_snapshot();
        snapshot.observation.telemetry.metrics.failed(error.cause);
        if let Some(table) = snapshot.table(pinned.operation) {
            record(&Call::new(&snapshot, table, context, mode), &pinned.kernel, error);
        }
        failure(pinned, error)
    }
}

fn failure(pinned: &Pinned, error: &KernelError) -> Error {
    let (operation, kernel) = (pinned.operation.name.to_string(), pinned.kernel.spec().id.clone());
    Error::KernelExecution { operation, kernel, reasons: vec![error.reason.clone()] }
}
