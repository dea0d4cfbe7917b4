//! The fallback path: records the failure of a kernel and runs the next kernel of the plan.

use std::sync::Arc;

use super::Shared;
use super::decide;
use super::dispatch::{RunOne, no_kernels};
use super::run_kernel::{record, run_admitted};
use crate::compiled::CompiledKernel;
use crate::selection::call::Call;
use crate::selection::snapshot::Snapshot;
use crate::selection::thread_cache::ThreadState;
use crate::selection::thread_scope;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::{KernelError, Severity};
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

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
    pub fn new(kernel: Option<Arc<CompiledKernel>>, error: Box<KernelError>) -> FailedRun {
        FailedRun { kernel, error: *error, recorded: false }
    }

    /// A failure that health has recorded.
    #[cold]
    #[expect(clippy::boxed_local, reason = "as above")]
    pub fn recorded(kernel: Option<Arc<CompiledKernel>>, error: Box<KernelError>) -> FailedRun {
        FailedRun { kernel, error: *error, recorded: true }
    }
}

impl Shared {
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
            let registry = &snapshot.registry;
            let form = candidate.map(|one| registry.adapted(one.kernel, ranked.transforms));
            let Some(kernel) = form.and_then(|form| registry.compiled(form)) else {
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

/// After a failed allocation, drops the cached free-memory figures.
fn invalidate_memory_figures(snapshot: &Snapshot, error: &KernelError) {
    if error.reason.code == ReasonCode::OutOfMemory {
        snapshot.blocks.clear();
    }
}
