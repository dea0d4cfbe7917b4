//! Failures of calls to a worker, attributed to the worker and its kernel, to the caller, or to neither.

use std::time::Duration;

use lz_core::kernel::Severity;
use lz_core::{KernelError, Reason, ReasonCode};

use crate::termination::Termination;
use crate::wait::WaitError;

/// Maximum bytes of a worker's text in a message.
const TEXT_BYTES: usize = 2000;

/// A text of a worker, truncated for use in a message.
pub(crate) fn excerpt(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES)).unwrap_or_default()
}

/// The worker is not running and cannot be started now.
pub(crate) fn unavailable(message: impl Into<String>) -> Reason {
    Reason::new(ReasonCode::WorkerUnavailable).message(message)
}

/// The worker violated the protocol.
pub(crate) fn protocol_error(message: impl Into<String>) -> Reason {
    Reason::new(ReasonCode::WorkerGarbage).message(message)
}

/// The worker did not answer in time.
pub(crate) fn hung(deadline: Duration) -> Reason {
    Reason::new(ReasonCode::WorkerHung)
        .required(format!("an answer within {deadline:?} (`worker.deadline_seconds`)"))
        .found("no answer; the worker was stopped")
}

/// The worker terminated during the call.
pub(crate) fn terminated(termination: &Termination) -> Reason {
    let code = match termination {
        Termination::OomKilled | Termination::MemoryLimitExceeded { .. } => ReasonCode::WorkerOom,
        Termination::Exited(_) | Termination::Signaled(_) | Termination::Unknown => ReasonCode::WorkerCrashed,
    };
    Reason::new(code).message(format!("the worker terminated during the call: {termination}"))
}

/// The worker cannot be started: the failure applies to the whole backend.
pub(crate) fn not_started(reason: Reason) -> KernelError {
    KernelError::because(reason).severity(Severity::Backend).before_writing()
}

/// The tensors of the call do not fit into shared memory. The kernel was not called.
pub(crate) fn out_of_memory(message: impl Into<String>) -> KernelError {
    KernelError::because(Reason::new(ReasonCode::OutOfMemory).message(message)).before_writing()
}

/// There is no memory for a copy of the call's strings or results. The kernel may have run.
pub(crate) fn no_copy(bytes: usize) -> KernelError {
    let message = format!("{bytes} bytes for a copy of what the call passes to or from the worker");
    KernelError { untouched: false, ..out_of_memory(message) }
}

/// The worker was lost because of another call while this one waited for it.
pub(crate) fn lost_to_another_call(reason: &Reason) -> KernelError {
    let message = format!("the worker was lost because of another call: {reason}");
    KernelError::because(unavailable(message))
}

/// A wait for `what` ended before the worker was called.
pub(crate) fn wait_failed(stop: WaitError, what: &str, deadline: Duration) -> KernelError {
    match stop {
        WaitError::Expired => KernelError::at_capacity(format!(
            "{what} did not become available within {deadline:?} (`worker.deadline_seconds`); it is in use by other calls"
        ))
        .before_writing(),
        WaitError::Interrupted => interrupted(),
        WaitError::Forked => forked(),
    }
}

/// The caller was interrupted.
pub(crate) fn interrupted() -> KernelError {
    KernelError::interrupted("the caller was interrupted while it waited for the worker").before_writing()
}

/// The process forked during the call, and this is the child.
pub(crate) fn forked() -> KernelError {
    let message = "the process forked during the call; the answer goes to the parent";
    KernelError::because(unavailable(message)).before_writing()
}
