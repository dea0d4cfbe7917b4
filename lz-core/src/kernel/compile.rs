//! How a kernel that compiles on first use is compiled before a call needs it. When that happens is decided elsewhere.

use super::KernelError;
use crate::context::Context;
use crate::expression_names;
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
