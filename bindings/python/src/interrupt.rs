//! Signals that arrive while a call waits for a worker process: their handlers run, and an exception that one raises reaches the
//! caller of the operation.

use std::cell::RefCell;

use pyo3::prelude::*;

thread_local! {
    /// The exception that a signal handler raised while this thread waited for a worker.
    static SIGNAL_EXCEPTION: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs signal handlers while a call waits for a worker; returns whether one raised, as Ctrl-C does.
pub fn check_signals() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    raised.map(|error| SIGNAL_EXCEPTION.set(Some(error))).is_some()
}

/// Takes the exception of a signal handler that interrupted a call of this thread.
pub fn take_signal_exception() -> Option<PyErr> {
    SIGNAL_EXCEPTION.take()
}
