//! Kernels: their specs and how they are run.

mod compile;
mod dense_copies;
mod prepare;
mod recording;
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
pub use prepare::{Prepare, PreparedInput};
pub use recording::{CallRecorder, RecordingKernel, TooLarge};
use run::Run;

/// The type-erased interface of a kernel. Generated code implements it for typed kernels.
pub trait Kernel: Send + Sync + 'static {
    /// The generated handle of a typed kernel, so that typed dispatch skips the dynamic arguments.
    fn as_any(&self) -> &dyn Any;

    /// Runs with validated arguments: inputs, then all params with defaults filled in.
    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError>;

    /// Whether it needs objects of the caller, so that `run` always declines.
    fn needs_caller(&self) -> bool {
        false
    }

    /// Records the call if this is a [`RecordingKernel`]. Callers use it for kernels that need their objects.
    fn recorder(&self) -> Option<&dyn CallRecorder> {
        None
    }
}

/// A kernel of an operation as a kernel of the operation's specializations: `Specialized(kernel).into_entry(spec)`.
#[derive(Debug, Clone, Copy)]
pub struct Specialized<K>(pub K);

/// One of several operations that a kernel fuses.
pub struct FusedPart<'a> {
    /// The operation.
    pub operation: &'static crate::operation::OperationInfo,
    /// Its validated arguments: inputs, then params. The output of the previous part is `Absent`: it is not materialized.
    pub args: Vec<Arg<'a>>,
}

/// A kernel that fuses neighboring operations (`fuses` in its spec).
pub trait FusedKernel: Send + Sync + 'static {
    /// Runs all parts in order; each takes the first output of the previous one. Writes the outputs of the last part. Results equal
    /// those of running the parts one by one, within the tolerance of the last part's schema.
    fn run_fused(
        &self,
        parts: &mut [FusedPart<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError>;
}

/// Accepts or rejects handles, which no expression over axes and params can express.
///
/// For operations with such a kernel, digests of handles become part of the cache key; others do not pay for it.
pub trait HandlePredicate: Send + Sync + 'static {
    /// Why it cannot run this call; `None` if it can. Called on cache misses only, in requests: it must not wait for long checks.
    /// While such a check runs elsewhere it returns [`ReasonCode::TokenizerVerifying`], and
    /// [`judgment::announce`](crate::judgment::announce) is called when the answer changes.
    fn objection(&self, operation: &OperationInfo, context: &Context) -> Option<Reason>;

    /// Waits until the answer for this call is final. Called where no other kernel can run a call, and where the policy asks for it.
    fn settle(&self, _operation: &OperationInfo, _context: &Context) {}

    /// What is not final yet, for readiness checks; `None` if nothing.
    fn pending(&self) -> Option<String> {
        None
    }
}

/// Why a kernel failed.
#[derive(Debug, Clone)]
pub struct KernelError {
    /// The reason, as data.
    pub reason: Reason,
    /// The cause.
    pub cause: Cause,
    /// The extent of the damage.
    pub severity: Severity,
    /// Nothing was written: even an operation that mutates its inputs may fall back to another kernel.
    pub untouched: bool,
}

impl KernelError {
    /// A failure of the kernel in this call.
    pub fn failed(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::KernelFailed).message(message))
    }

    /// The kernel declines the call before writing anything; a fallback may run.
    pub fn declined(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::KernelDeclined).message(message)).before_writing()
    }

    /// The caller's program interrupted the call: no fallback runs.
    pub fn interrupted(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::CallInterrupted).message(message))
    }

    /// A limited resource other than memory is exhausted.
    pub fn at_capacity(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::CapacityExceeded).message(message))
    }

    /// A dependency of the kernel failed: a file, a library, another process.
    pub fn environment(message: impl Into<String>) -> KernelError {
        KernelError::because(Reason::new(ReasonCode::EnvironmentFailed).message(message))
    }

    /// Arguments that were found to be invalid on the way to the kernel.
    pub fn invalid(error: crate::error::Error) -> KernelError {
        let reason = error.reasons().first().map(|reason| (*reason).clone());
        let reason =
            reason.unwrap_or_else(|| Reason::new(ReasonCode::KernelFailed).message(error.to_string()));
        KernelError::because(reason).cause(Cause::Caller).before_writing()
    }

    /// With this reason, whose code determines the [usual cause](Cause::of).
    pub fn because(reason: Reason) -> KernelError {
        let cause = Cause::of(reason.code);
        KernelError { reason, cause, severity: Severity::Call, untouched: false }
    }

    /// Overrides the cause.
    #[must_use]
    pub fn cause(mut self, cause: Cause) -> KernelError {
        self.cause = cause;
        self
    }

    /// Marks that nothing was written.
    #[must_use]
    pub fn before_writing(mut self) -> KernelError {
        self.untouched = true;
        self
    }

    /// Sets the extent of the damage.
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

/// A kernel and its spec, as registered.
#[derive(Clone)]
pub struct KernelEntry {
    /// Its spec.
    pub spec: Arc<crate::spec::KernelSpec>,
    /// Its implementation.
    pub kernel: Arc<dyn Kernel>,
    /// Compiles it ahead of a call; only for kernels with `jit`.
    pub compile: Option<Arc<dyn Compile>>,
    /// Runs it fused with neighboring operations; without it a plan may name the kernel for them, but a block is not run fused.
    pub fused: Option<Arc<dyn FusedKernel>>,
    /// Accepts or rejects handles.
    pub judge: Option<Arc<dyn HandlePredicate>>,
    /// Rearranges constant inputs ahead of calls.
    pub prepare: Option<Arc<dyn Prepare>>,
    /// Its operation, if known; otherwise the registry looks it up by the spec's name.
    pub operation: Option<&'static OperationInfo>,
    /// For a version that is registered next to the stable one: the id of the stable one. Its own id is `<id>@<version>`.
    pub version_of: Option<Arc<str>>,
}

impl KernelEntry {
    /// Combines a spec and an implementation.
    pub fn new(spec: crate::spec::KernelSpec, kernel: impl Kernel) -> KernelEntry {
        let (spec, kernel) = (Arc::new(spec), Arc::new(kernel));
        KernelEntry {
            spec,
            kernel,
            compile: None,
            fused: None,
            judge: None,
            prepare: None,
            operation: None,
            version_of: None,
        }
    }

    /// This kernel as a version next to the stable one: its id becomes `<id>@<version>`.
    #[must_use]
    pub fn as_version(mut self) -> KernelEntry {
        let mut spec = (*self.spec).clone();
        self.version_of = Some(spec.id.as_str().into());
        spec.id = format!("{}@{}", spec.id, spec.version);
        self.spec = Arc::new(spec);
        self
    }

    /// Whether a name is the name of this kernel: its id, or the id with its version.
    pub fn is_named(&self, name: &str) -> bool {
        let versioned = || name.strip_prefix(&*self.spec.id)?.strip_prefix('@');
        self.spec.id == name || versioned() == Some(self.spec.version.as_str())
    }

    /// Sets its operation, so that it need not be registered before.
    #[must_use]
    pub fn of(mut self, operation: &'static OperationInfo) -> KernelEntry {
        self.operation = Some(operation);
        self
    }

    /// Sets the compiler, so that it need not compile inside a call.
    #[must_use]
    pub fn compiled_by(mut self, compile: impl Compile) -> KernelEntry {
        self.compile = Some(Arc::new(compile));
        self
    }

    /// Sets the implementation of the operations that its spec fuses.
    #[must_use]
    pub fn fusing(mut self, fused: impl FusedKernel) -> KernelEntry {
        self.fused = Some(Arc::new(fused));
        self
    }

    /// Sets the filter of handles.
    #[must_use]
    pub fn judged_by(mut self, judge: impl HandlePredicate) -> KernelEntry {
        self.judge = Some(Arc::new(judge));
        self
    }

    /// Sets how constant inputs are rearranged ahead of calls.
    #[must_use]
    pub fn prepared_by(mut self, prepare: impl Prepare) -> KernelEntry {
        self.prepare = Some(Arc::new(prepare));
        self
    }

    /// Runs it with dynamic arguments. Outputs whose size it determines are checked: a wrong one is a failure of the kernel.
    pub fn run(
        &self,
        args: &mut [crate::args::Arg<'_>],
        outputs: &mut [crate::args::OutArg<'_>],
        run: &mut crate::run::Run<'_>,
    ) -> Result<(), KernelError> {
        self.kernel.run(args, outputs, run)?;
        match self.operation {
            Some(operation) => crate::check::check_dynamic_outputs(operation.schema(), args, outputs)
                .map_err(KernelError::because),
            None => Ok(()),
        }
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
