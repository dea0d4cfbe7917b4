//! Kernels: what one says of itself (as data) and how it is run.

mod compile;
pub mod run;
mod stream;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::args::{Arg, OutArg};
use crate::context::Context;
pub use crate::failure::{Cause, Severity};
use crate::operation::OperationInfo;
use crate::reason::{Reason, ReasonCode};

pub use compile::{Compile, CompileRequest, Compiled};
use run::Run;

/// How a kernel is called by somebody who does not know its operation. Generated code implements it for typed kernels.
pub trait Kernel: Send + Sync + 'static {
    /// The generated handle of a typed kernel, so that typed dispatch skips the dynamic arguments.
    fn as_any(&self) -> &dyn Any;

    /// Runs with arguments that were validated: inputs, then params (all of them, defaults filled in).
    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError>;
}

/// One operation of several that a kernel does at once.
pub struct FusedPart<'a> {
    /// The operation.
    pub operation: &'static crate::operation::OperationInfo,
    /// Its arguments, validated: inputs, then params. What the part before it would make is `Absent`: it is never made.
    pub args: Vec<Arg<'a>>,
}

/// How a kernel runs that does its neighbours' operations as well (`fuses` in its spec).
pub trait FusedKernel: Send + Sync + 'static {
    /// Does all parts, in order, each of which takes the first output of the one before it, and writes the outputs of the
    /// last. The values are those of the parts one after the other, within what the last one's schema allows.
    fn run_fused(
        &self,
        parts: &mut [FusedPart<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError>;
}

/// Whether a kernel may run calls with a certain handle, which no expression over axes and params can say.
///
/// A kernel with a judge makes digests of handles part of what decisions are remembered by; others do not pay for it.
pub trait Judge: Send + Sync + 'static {
    /// Why it may not run this call; `None` if it may. Asked when a decision is made, not on each call.
    fn objection(&self, operation: &OperationInfo, context: &Context) -> Option<Reason>;
}

/// Why a kernel did not finish.
#[derive(Debug, Clone)]
pub struct KernelError {
    /// The reason, as data.
    pub reason: Reason,
    /// Whose fault it is.
    pub cause: Cause,
    /// How far the damage goes.
    pub severity: Severity,
    /// Nothing was written: even an operation that changes its inputs may be tried with another kernel.
    pub untouched: bool,
}

impl KernelError {
    /// A failure of the kernel in this call.
    pub fn failed(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::KernelFailed).message(message))
    }

    /// The kernel declines the call and has written nothing; another one may try.
    pub fn declined(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::KernelDeclined).message(message)).before_writing()
    }

    /// The caller's program ended the call: no other kernel is tried.
    pub fn interrupted(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::CallInterrupted).message(message))
    }

    /// A limited resource other than memory is used up.
    pub fn at_capacity(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::CapacityExceeded).message(message))
    }

    /// Something that the kernel depends on failed: a file, a library, another process.
    pub fn environment(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::EnvironmentFailed).message(message))
    }

    /// Arguments that turned out wrong on the way to the kernel.
    pub fn invalid(error: crate::error::Error) -> KernelError {
        let reason = error.reasons().first().map(|reason| (*reason).clone());
        let reason =
            reason.unwrap_or_else(|| Reason::new(ReasonCode::KernelFailed).message(error.to_string()));
        KernelError::because(reason).cause(Cause::Caller).before_writing()
    }

    /// With a reason of its own, whose code says the [usual cause](Cause::of).
    pub fn because(reason: Reason) -> KernelError {
        let cause = Cause::of(reason.code);
        KernelError { reason, cause, severity: Severity::Call, untouched: false }
    }

    /// Says whose fault it is, where the code of the reason does not.
    #[must_use]
    pub fn cause(mut self, cause: Cause) -> KernelError {
        self.cause = cause;
        self
    }

    /// Says that nothing was written before it failed.
    #[must_use]
    pub fn before_writing(mut self) -> KernelError {
        self.untouched = true;
        self
    }

    /// Says how far the damage goes.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> KernelError {
        self.severity = severity;
        self
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for KernelError {}

/// A kernel and its spec, as the registry holds it.
#[derive(Clone)]
pub struct KernelEntry {
    /// What it says of itself.
    pub spec: Arc<crate::spec::KernelSpec>,
    /// How it runs.
    pub kernel: Arc<dyn Kernel>,
    /// How it is compiled for a shape before a call needs it; only kernels that say `jit` have one.
    pub compile: Option<Arc<dyn Compile>>,
    /// How it does its neighbours' operations as well; without it a plan may name it for them, but a block is not run so.
    pub fused: Option<Arc<dyn FusedKernel>>,
    /// Who decides for which handles it may run.
    pub judge: Option<Arc<dyn Judge>>,
    /// Its operation, where the maker of the entry knows it; otherwise the registry finds it by the spec's name.
    pub operation: Option<&'static OperationInfo>,
}

impl KernelEntry {
    /// Joins the two.
    pub fn new(spec: crate::spec::KernelSpec, kernel: impl Kernel) -> KernelEntry {
        let (spec, kernel) = (Arc::new(spec), Arc::new(kernel));
        KernelEntry { spec, kernel, compile: None, fused: None, judge: None, operation: None }
    }

    /// Says which operation it is a kernel of, so that the registry need not know the operation beforehand.
    #[must_use]
    pub fn of(mut self, operation: &'static OperationInfo) -> KernelEntry {
        self.operation = Some(operation);
        self
    }

    /// Says how it is compiled, so that it need not be compiled inside a call.
    #[must_use]
    pub fn compiled_by(mut self, compile: impl Compile) -> KernelEntry {
        self.compile = Some(Arc::new(compile));
        self
    }

    /// Says how it does the operations that its spec says it fuses.
    #[must_use]
    pub fn fusing(mut self, fused: impl FusedKernel) -> KernelEntry {
        self.fused = Some(Arc::new(fused));
        self
    }

    /// Says who decides for which handles it may run.
    #[must_use]
    pub fn judged_by(mut self, judge: impl Judge) -> KernelEntry {
        self.judge = Some(Arc::new(judge));
        self
    }

    /// The generated handle of a typed kernel.
    #[inline]
    pub fn typed<H: 'static>(&self) -> Option<&H> {
        self.kernel.as_any().downcast_ref()
    }
}

impl fmt::Debug for KernelEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelEntry").field("spec", &self.spec).finish_non_exhaustive()
    }
}
