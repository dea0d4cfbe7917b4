//! Failures of calls to a worker, and who is to blame for them: the worker and its kernel, the caller, or neither.

use std::time::Duration;

use lz_core::kernel::Severity;
use lz_core::{KernelError, Reason, ReasonCode};

use crate::ending::Ending;
use crate::patience::Stop;

/// Longest text of a worker that goes into a message.
const TEXT_BYTES: usize = 2000;

/// A text that came from a worker, cut to a length that fits into a message.
pub(crate) fn excerpt(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES)).unwrap_or_default()
}

/// The worker does not run and cannot be started now.
pub(crate) fn unavailable(message: impl Into<String>) -> Reason {
    Reason::new(ReasonCode::WorkerUnavailable).message(message)
}

/// The worker sent or wrote what none that keeps the protocol does.
pub(crate) fn garbage(message: impl Into<String>) -> Reason {
    Reason::new(ReasonCode::WorkerGarbage).message(message)
}

/// The worker gave no answer.
pub(crate) fn hung(deadline: Duration) -> Reason {
    Reason::new(ReasonCode::WorkerHung)
        .required(format!("an answer within {deadline:?}"))
        .found("none; the worker was stopped")
}

/// The worker ended while it ran the call.
pub(crate) fn ended(ending: &Ending) -> Reason {
    let code = match ending {
        Ending::KilledForMemory | Ending::AboveLimit { .. } => ReasonCode::WorkerOom,
        Ending::Exited(_) | Ending::Signalled(_) | Ending::Unknown => ReasonCode::WorkerCrashed,
    };
    Reason::new(code).message(format!("the worker ended in the middle of the call: {ending}"))
}

/// The worker cannot be used at all: calls of every size fail with it.
pub(crate) fn not_started(reason: Reason) -> KernelError {
    KernelError::because(reason).severity(Severity::Backend).before_writing()
}

/// The tensors of the call do not fit into shared memory. The kernel has not seen it.
pub(crate) fn out_of_memory(message: impl Into<String>) -> KernelError {
    KernelError::because(Reason::new(ReasonCode::OutOfMemory).message(message)).before_writing()
}

/// The worker was lost because of another call while this one waited for it.
pub(crate) fn beside_another(reason: &Reason) -> KernelError {
    let message = format!("the worker was lost because of another call: {reason}");
    KernelError::because(unavailable(message))
}

/// A wait that ended before its worker was involved; `what` was waited for.
pub(crate) fn stopped(stop: Stop, what: &str, deadline: Duration) -> KernelError {
    match stop {
        Stop::Expired => KernelError::at_capacity(format!(
            "{what} did not become free within {deadline:?} (`worker.deadline_seconds`); other calls to the worker have it"
        ))
        .before_writing(),
        Stop::Interrupted => interrupted(),
        Stop::Forked => forked(),
    }
}

/// The caller was interrupted.
pub(crate) fn interrupted() -> KernelError {
    KernelError::interrupted("the caller was interrupted while it waited for the worker").before_writing()
}

/// This is the child of a process that forked in the middle of the call.
pub(crate) fn forked() -> KernelError {
    let message = "the process forked in the middle of the call, whose answer goes to the parent";
    KernelError::because(unavailable(message)).before_writing()
}
