//! The C side of a call: reads arguments, catches panics, and converts errors to failures that C++ can inspect.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lz_core::{Error, OperationInfo, Reason, ReasonCode};
use lz_plugin::abi::{self, CallOptions, Output, Versioned};

use crate::data;

/// The error of a bridge function. C++ converts it to an exception.
#[derive(Debug)]
pub struct Failure(Error);

/// The result of a call. An error is about a hundred bytes; it is boxed so that success is a null pointer, which is returned at
/// no cost.
pub type Outcome = Result<(), Box<Error>>;

/// Runs `work` and returns a failure for an error or panic, or a null pointer for success.
pub fn guarded(work: impl FnOnce() -> Result<(), Error>) -> *mut Failure {
    guarded_call(|| work().map_err(Box::new))
}

/// As [`guarded`], for the call of an operation.
#[inline]
pub fn guarded_call(work: impl FnOnce() -> Outcome) -> *mut Failure {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(error)) => fail(*error),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let message = format!("bug in LayerZero: {}", text.unwrap_or_else(|| "panic".to_owned()));
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
    let reasons = vec![reason];
    lz_core::check::count_errors(&reasons);
    Error::Validation { operation: operation.name.to_string(), reasons }
}

/// Converts the result of borrowing arguments; an argument that cannot be borrowed is an error of the caller.
#[inline]
pub fn or_invalid_argument(operation: &OperationInfo, outcome: Result<Outcome, Reason>) -> Outcome {
    match outcome {
        Ok(outcome) => outcome,
        Err(reason) => Err(refuse(operation, reason).into()),
    }
}

/// The arguments of a call, up to the fields that both sides have.
///
/// # Safety
/// As for [`abi::borrow`].
#[inline]
pub unsafe fn arguments<'a, A: Versioned>(
    operation: &OperationInfo,
    args: *const A,
    buffer: &'a mut Option<A>,
) -> Result<&'a A, Error> {
    // SAFETY: the caller's contract is the same.
    unsafe { abi::borrow(args, buffer) }.map_err(|reason| refuse(operation, reason))
}

/// A buffer for the structure of a caller with an older version, which has fewer fields.
#[derive(Debug)]
pub struct VersionBuffer<A> {
    args: Option<A>,
    options: Option<CallOptions>,
}

impl<A> Default for VersionBuffer<A> {
    #[inline]
    fn default() -> VersionBuffer<A> {
        VersionBuffer { args: None, options: None }
    }
}

/// The output slots of one call.
#[derive(Debug)]
pub struct Call<const N: usize> {
    outputs: *mut Output,
}

/// The options of a call.
#[derive(Debug)]
pub struct CallSettings<'a> {
    pub(crate) given: &'a CallOptions,
}

impl CallSettings<'_> {
    /// Runs `work` on the caller's stream.
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
    /// Reads the arguments, outputs and options of a call.
    ///
    /// # Safety
    /// The pointers refer to structures as described in `lz_plugin.h`, which do not change during `'a`; there are `N` outputs.
    #[inline]
    pub unsafe fn read<'a, A: Versioned>(
        operation: &OperationInfo,
        args: *const A,
        outputs: *mut Output,
        options: *const CallOptions,
        buffer: &'a mut VersionBuffer<A>,
    ) -> Result<(&'a A, Call<N>, CallSettings<'a>), Error> {
        // SAFETY: the caller's contract is the same.
        let args = unsafe { arguments(operation, args, &mut buffer.args) }?;
        // SAFETY: the caller's contract is the same.
        let given = unsafe { abi::borrow(options, &mut buffer.options) };
        let given = given.map_err(|reason| refuse(operation, reason))?;
        if N > 0 && outputs.is_null() {
            let reason = Reason::new(ReasonCode::OutputMissing)
                .message("the outputs are missing: the pointer is null");
            return Err(refuse(operation, reason));
        }
        Ok((args, Call { outputs }, CallSettings { given }))
    }

    /// The slot of one output.
    #[inline]
    pub fn at(&mut self, number: usize) -> Result<&'static mut Output, Error> {
        debug_assert!(number < N);
        // SAFETY: the caller of `read` guarantees `N` outputs; each is borrowed once, and only during the call.
        Ok(unsafe { &mut *self.outputs.add(number) })
    }
}

/// The kind of exception.
pub fn failure_kind(failure: &Failure) -> u32 {
    match &failure.0 {
        Error::Validation { .. } => 1,
        Error::NoKernel { .. } => 2,
        Error::Locked { .. } => 3,
        Error::CudaGraphUnsafe { .. } => 4,
        Error::KernelExecution { .. } => 5,
        Error::Configuration { .. } => 6,
        Error::UnknownOperation { .. } => 7,
    }
}

/// The operation that failed; empty if none.
pub fn failure_operation(failure: &Failure) -> String {
    match &failure.0 {
        Error::Validation { operation, .. }
        | Error::NoKernel { operation, .. }
        | Error::Locked { operation, .. }
        | Error::CudaGraphUnsafe { operation, .. }
        | Error::KernelExecution { operation, .. }
        | Error::UnknownOperation { operation, .. } => operation.clone(),
        Error::Configuration { subject, .. } => subject.clone(),
    }
}

/// The kernel that failed; empty if none.
pub fn failure_kernel(failure: &Failure) -> String {
    match &failure.0 {
        Error::Locked { kernel, .. } | Error::KernelExecution { kernel, .. } => kernel.clone(),
        _ => String::new(),
    }
}

/// The message.
pub fn failure_message(failure: &Failure) -> String {
    failure.0.to_string()
}

/// The reasons.
pub fn failure_reasons(failure: &Failure) -> Vec<data::Reason> {
    failure.0.reasons().into_iter().map(reason).collect()
}

/// A reason as plain data.
pub fn reason(reason: &Reason) -> data::Reason {
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    data::Reason {
        code: reason.code.as_str().to_owned(),
        argument: or_empty(&reason.argument),
        axis: or_empty(&reason.axis),
        required: or_empty(&reason.required),
        found: or_empty(&reason.found),
        message: reason.sentence(),
    }
}
