//! How a call crosses: arguments are read, panics are caught, errors become failures that C++ can look into.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lz_core::{Error, OperationInfo, Reason, ReasonCode};
use lz_plugin::abi::{self, CallOptions, Output, Versioned};

use crate::generated::bridge::ffi;

/// Why a function did not do what it should. C++ turns it into an exception.
#[derive(Debug)]
pub struct Failure(Error);

/// What came of a call. An error takes a hundred bytes: where it is boxed, success is no more than a null pointer, and calls pass
/// it on at no cost.
pub type Outcome = Result<(), Box<Error>>;

/// Runs `work`; an error or a panic becomes a failure, success a null pointer.
pub fn guarded(work: impl FnOnce() -> Result<(), Error>) -> *mut Failure {
    guarded_call(|| work().map_err(Box::new))
}

/// The same for the call of an operation.
#[inline]
pub fn guarded_call(work: impl FnOnce() -> Outcome) -> *mut Failure {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(error)) => fail(*error),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let message = format!("a bug in LayerZero: {}", text.unwrap_or_else(|| "a panic".to_owned()));
            let reasons = vec![Reason::new(ReasonCode::KernelPanicked).message(message)];
            fail(Error::KernelExecution { operation: String::new(), kernel: String::new(), reasons })
        }
    }
}

#[cold]
fn fail(error: Error) -> *mut Failure {
    Box::into_raw(Box::new(Failure(error)))
}

/// An error that names an operation and one reason.
#[cold]
pub fn refuse(operation: &OperationInfo, reason: Reason) -> Error {
    Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] }
}

/// What came of lending arguments: those that cannot be lent are the caller's mistake.
#[inline]
pub fn settle(operation: &OperationInfo, outcome: Result<Outcome, Reason>) -> Outcome {
    match outcome {
        Ok(outcome) => outcome,
        Err(reason) => Err(refuse(operation, reason).into()),
    }
}

/// The arguments of a call, as far as both sides know them.
///
/// # Safety
/// As for [`abi::borrow`].
#[inline]
pub unsafe fn arguments<'a, A: Versioned>(
    operation: &OperationInfo,
    args: *const A,
    room: &'a mut Option<A>,
) -> Result<&'a A, Error> {
    // SAFETY: passed on.
    unsafe { abi::borrow(args, room) }.map_err(|reason| refuse(operation, reason))
}

/// Room for what a caller says who knows less than we do.
#[derive(Debug)]
pub struct Room<A> {
    args: Option<A>,
    options: Option<CallOptions>,
}

impl<A> Default for Room<A> {
    #[inline]
    fn default() -> Room<A> {
        Room { args: None, options: None }
    }
}

/// The places for results of one call.
#[derive(Debug)]
pub struct Call<const N: usize> {
    outputs: *mut Output,
}

/// How a call is made.
#[derive(Debug)]
pub struct CallSettings<'a> {
    pub(crate) given: &'a CallOptions,
}

impl CallSettings<'_> {
    /// Runs on the caller's stream.
    #[inline]
    pub fn run(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if self.given.stream.is_null() {
            return work();
        }
        let _stream = lz_core::run::on_stream(self.given.stream as usize);
        work()
    }
}

impl<const N: usize> Call<N> {
    /// Everything that a call crosses with.
    ///
    /// # Safety
    /// The pointers name structures as `lz_plugin.h` describes them, which stay as they are for `'a`; there are `N` outputs.
    #[inline]
    pub unsafe fn read<'a, A: Versioned>(
        operation: &OperationInfo,
        args: *const A,
        outputs: *mut Output,
        options: *const CallOptions,
        room: &'a mut Room<A>,
    ) -> Result<(&'a A, Call<N>, CallSettings<'a>), Error> {
        // SAFETY: passed on.
        let args = unsafe { arguments(operation, args, &mut room.args) }?;
        // SAFETY: passed on.
        let given = unsafe { abi::borrow(options, &mut room.options) };
        let given = given.map_err(|reason| refuse(operation, reason))?;
        if N > 0 && outputs.is_null() {
            let reason = Reason::new(ReasonCode::OutputMissing).message("there is no place for the results");
            return Err(refuse(operation, reason));
        }
        Ok((args, Call { outputs }, CallSettings { given }))
    }

    /// The place of one result.
    #[inline]
    pub fn at(&mut self, number: usize) -> Result<&'static mut Output, Error> {
        debug_assert!(number < N);
        // SAFETY: the caller of `read` vouched for `N` outputs; each is asked for once, and used only before the call ends.
        Ok(unsafe { &mut *self.outputs.add(number) })
    }
}

/// Which exception it becomes.
pub fn failure_kind(failure: &Failure) -> u32 {
    match &failure.0 {
        Error::Validation { .. } => 1,
        Error::NoKernel { .. } => 2,
        Error::Locked { .. } => 3,
        Error::CudaGraphUnsafe { .. } => 4,
        Error::KernelExecution { .. } => 5,
        Error::Configuration { .. } => 6,
    }
}

/// Which operation it is about; empty if none.
pub fn failure_operation(failure: &Failure) -> String {
    match &failure.0 {
        Error::Validation { operation, .. }
        | Error::NoKernel { operation, .. }
        | Error::Locked { operation, .. }
        | Error::CudaGraphUnsafe { operation, .. }
        | Error::KernelExecution { operation, .. } => operation.clone(),
        Error::Configuration { subject, .. } => subject.clone(),
    }
}

/// Which kernel it is about; empty if none.
pub fn failure_kernel(failure: &Failure) -> String {
    match &failure.0 {
        Error::Locked { kernel, .. } | Error::KernelExecution { kernel, .. } => kernel.clone(),
        _ => String::new(),
    }
}

/// The whole text.
pub fn failure_message(failure: &Failure) -> String {
    failure.0.to_string()
}

/// The reasons.
pub fn failure_reasons(failure: &Failure) -> Vec<ffi::Reason> {
    failure.0.reasons().into_iter().map(reason).collect()
}

/// A reason as plain data.
pub fn reason(reason: &Reason) -> ffi::Reason {
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    ffi::Reason {
        code: reason.code.as_str().to_owned(),
        argument: or_empty(&reason.argument),
        axis: or_empty(&reason.axis),
        required: or_empty(&reason.required),
        found: or_empty(&reason.found),
        message: reason.sentence(),
    }
}
