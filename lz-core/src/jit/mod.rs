//! Compilation outside of calls: JIT kernels are compiled ahead of time (`warmup`) or in the background (`JitQueue`), and other kernels
//! run until then.
//!
//! Nothing here selects: it compiles kernels and marks them as warm in the engine. Nothing here runs inside a call except
//! [`JitRequests::request`](crate::engine::JitRequests), which inserts a request into a queue.

mod config;
mod manifest;
mod one;
mod queue;
mod warmup;

pub use config::JitConfig;
pub use manifest::{Manifest, ManifestEntry, ManifestState};
pub use queue::{JitCounters, JitQueue};
pub use warmup::{WarmupItem, WarmupProgress, WarmupReport};

use crate::context::Context;
use crate::expression_names;
use crate::kernel::KernelError;
use crate::operation::OperationInfo;
use crate::spec::KernelSpec;

/// Compiles a kernel for a shape. Called by a background thread or a warm-up, never inside a call; it may take arbitrarily long and must
/// not call the engine.
pub trait Compile: Send + Sync + 'static {
    /// Compiles for calls like this one.
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Compiled, KernelError>;
}

impl<F> Compile for F
where
    F: Fn(&CompileRequest<'_>) -> Result<Compiled, KernelError> + Send + Sync + 'static,
{
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Compiled, KernelError> {
        self(request)
    }
}

/// A compilation request.
#[derive(Debug, Clone, Copy)]
pub struct CompileRequest<'a> {
    /// The kernel.
    pub spec: &'a KernelSpec,
    /// Its operation.
    pub operation: &'static OperationInfo,
    /// A call that it is requested for; it is compiled for the call's bucket.
    pub context: &'a Context,
}

impl CompileRequest<'_> {
    /// The call's axes, params, dtypes and other fields, by name and as text.
    pub fn call(&self) -> Vec<(String, String)> {
        let fields = self.operation.fields.iter();
        fields.map(|field| (field.name.to_string(), expression_names::show(field, self.context))).collect()
    }
}

/// The result of a compilation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// Keys of artifacts in the backend's own cache.
    pub artifacts: Vec<String>,
}
