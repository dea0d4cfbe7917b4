//! One compilation: looks up the kernel, runs its compiler, and records the outcome in health and engine.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bucket::Bucket;
use crate::engine::Engine;
use crate::health::{CircuitStatus, Failure};
use crate::selection::call::Call;
use lz_core::context::Context;
use lz_core::kernel::{CompileRequest, Compiled, KernelError};
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// The outcome of a compilation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Compiled.
    Done(Compiled),
    /// It was warm already.
    Warm,
    /// It failed; recorded in health.
    Failed(Reason),
    /// Refused by its circuit breaker.
    Resting(Reason),
    /// It cannot be compiled.
    Impossible(Reason),
}

/// Compiles a kernel for calls like this one and, on success, marks it as warm.
pub(super) fn compile(
    engine: &Engine,
    kernel: &str,
    operation: &'static OperationInfo,
    context: &Context,
) -> Outcome {
    let snapshot = engine.snapshot();
    let unknown = || Outcome::Impossible(Reason::new(ReasonCode::KernelUnknown).message(kernel));
    let found = snapshot.registry.index_of(operation, kernel);
    let found = found.and_then(|index| snapshot.registry.compiled(index));
    let (Some(table), Some(found)) = (snapshot.table(operation), found) else { return unknown() };
    let entry = found.entry.clone();
    if snapshot.warm.contains(operation, kernel, Bucket::of(operation, context).words()) {
        return Outcome::Warm;
    }
    let Some(compiler) = &entry.compile else {
        let message =
            format!("{kernel} has no ahead-of-time compiler: it only compiles inside its first call");
        return Outcome::Impossible(Reason::new(ReasonCode::JitCold).message(message));
    };
    let call = Call::new(&snapshot, table, context, snapshot.mode);
    let subject = call.subject(found);
    if let CircuitStatus::Refused(refusal) = snapshot.health.circuit_status(&subject) {
        return Outcome::Resting(Reason::new(ReasonCode::CircuitOpen).message(refusal.to_string()));
    }
    let request = CompileRequest { spec: &entry.spec, operation, context };
    let outcome = catch_unwind(AssertUnwindSafe(|| compiler.compile(&request)));
    let error = match outcome {
        Ok(Ok(compiled)) => {
            engine.mark_warm(kernel, operation, context);
            return Outcome::Done(compiled);
        }
        Ok(Err(error)) => error,
        Err(_) => KernelError::failed("the compiler panicked"),
    };
    let message = format!("{kernel}: {}", error.reason.sentence());
    let reason = Reason::new(ReasonCode::JitFailed).message(message);
    if let Ok(permit) = snapshot.health.admit(subject) {
        permit.failed(Failure::of(&error, &reason.sentence()));
    }
    Outcome::Failed(reason)
}
