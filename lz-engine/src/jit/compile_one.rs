//! One compilation: find the kernel, run its compiler, tell health and engine what became of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bucket::Bucket;
use crate::engine::Engine;
use crate::health::{Failure, Standing};
use crate::selection::call::Call;
use lz_core::context::Context;
use lz_core::kernel::{CompileRequest, Compiled, KernelError};
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// What became of a compilation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// The kernel is warm now.
    Done(Compiled),
    /// It was warm already.
    Warm,
    /// It failed; health knows.
    Failed(Reason),
    /// Health does not want it tried now.
    Resting(Reason),
    /// It cannot be compiled here.
    Impossible(Reason),
}

/// Compiles a kernel for calls like this one and, when that works, says to the engine that it is warm.
pub(super) fn compile(
    engine: &Engine,
    kernel: &str,
    operation: &'static OperationInfo,
    context: &Context,
) -> Outcome {
    let world = engine.world();
    let unknown = || Outcome::Impossible(Reason::new(ReasonCode::KernelUnknown).message(kernel));
    let found = world.registry.index_of(operation, kernel);
    let found = found.and_then(|index| world.registry.compiled(index));
    let (Some(table), Some(found)) = (world.table(operation), found) else { return unknown() };
    let entry = found.entry.clone();
    if world.warm.contains(operation, kernel, Bucket::of(operation, context).words()) {
        return Outcome::Warm;
    }
    let Some(compiler) = &entry.compile else {
        let message = format!("{kernel} compiles inside its first call only: it brings no compiler");
        return Outcome::Impossible(Reason::new(ReasonCode::JitCold).message(message));
    };
    let call = Call::new(&world, table, context, world.mode);
    let subject = call.subject(found);
    if let Standing::Refused(refusal) = world.health.standing(&subject) {
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
    if let Ok(permit) = world.health.admit(subject) {
        permit.failed(Failure::of(&error, &reason.sentence()));
    }
    Outcome::Failed(reason)
}
