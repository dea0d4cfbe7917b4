//! Compilation outside of calls: kernels that compile on first use are compiled beforehand (`warmup`) or in the background
//! (`JitQueue`), and until then another kernel does the work.
//!
//! Nothing here decides which kernel runs: it only makes kernels warm and says so to the engine. Nothing here runs inside a
//! call except [`JitRequests::want`](crate::engine::JitRequests), which puts a note into a queue.

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

/// How a kernel is compiled for a shape. Called by a background thread or by a warm-up, never inside a call; it may take as
/// long as it needs, and must not call the engine.
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

/// What is to be compiled.
#[derive(Debug, Clone, Copy)]
pub struct CompileRequest<'a> {
    /// The kernel.
    pub spec: &'a KernelSpec,
    /// Its operation.
    pub operation: &'static OperationInfo,
    /// A call that it is wanted for; others of the same bucket count as alike.
    pub context: &'a Context,
}

impl CompileRequest<'_> {
    /// The call's axes, params, dtypes and so on, by name and as text.
    pub fn call(&self) -> Vec<(String, String)> {
        let fields = self.operation.fields.iter();
        fields.map(|field| (field.name.to_string(), expression_names::show(field, self.context))).collect()
    }
}

/// What a compilation left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// Keys of what now lies in the backend's own cache.
    pub artifacts: Vec<String>,
}
