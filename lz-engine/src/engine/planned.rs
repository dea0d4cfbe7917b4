//! Runs a call with the kernel of a plan, without selection.

use std::sync::Arc;

use super::Engine;
use super::dispatch::{self, RunOne};
use super::run_kernel::run_admitted;
use crate::selection::call::Call;
use crate::selection::filter;
use crate::selection::snapshot::Snapshot;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::reason::Reason;
use lz_core::run::Scratch;

impl Engine {
    /// The snapshot that this thread's calls are decided under, and their mode.
    pub(crate) fn thread_snapshot(&self) -> (Arc<Snapshot>, Mode) {
        self.shared.thread_snapshot()
    }

    /// Runs a call with this kernel. Returns false if it cannot run the call, or failed and a fallback may run.
    pub(crate) fn run_planned(
        &self,
        kernel: &str,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut RunOne<'_>,
    ) -> Result<bool, Error> {
        let (snapshot, mode) = self.shared.thread_snapshot();
        if !snapshot.devices.are_real() {
            return Err(dispatch::simulated_device_error(operation));
        }
        let Some(table) = snapshot.table(operation) else { return Ok(false) };
        let call = Call::new(&snapshot, table, context, mode);
        let position = table.position_of(&snapshot.registry, kernel);
        let candidate = position.and_then(|position| table.candidates.get(usize::from(position)));
        let registry = &snapshot.registry;
        let compiled = candidate.and_then(|candidate| {
            let kernel = registry.compiled(candidate.kernel)?;
            let transforms = filter::transforms(&call, &kernel.facts, || Some(kernel));
            registry.compiled(registry.adapted(candidate.kernel, transforms))
        });
        let (Some(position), Some(compiled)) = (position, compiled) else { return Ok(false) };
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(&call, position, &mut reasons);
        if !reasons.is_empty() {
            return Ok(false);
        }
        let metrics = &snapshot.observation.telemetry.metrics;
        metrics.executed(compiled.spec());
        let bytes = filter::workspace(compiled, &call.values).unwrap_or(0);
        let transforms = filter::transforms(&call, &compiled.facts, || Some(compiled));
        let mut scratch = Scratch::default();
        match run_admitted(&call, compiled, bytes, transforms, &mut scratch, run_one) {
            None => Ok(true),
            Some(error) => {
                metrics.failed(error.cause);
                let mut reasons = vec![error.reason.clone()];
                if self.shared.may_fall_back(&snapshot, operation, &error, &mut reasons) {
                    return Ok(false);
                }
                let kernel = kernel.to_owned();
                Err(Error::KernelExecution { operation: operation.name.to_string(), kernel, reasons })
            }
        }
    }
}
