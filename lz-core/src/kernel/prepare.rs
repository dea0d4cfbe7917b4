//! Constant inputs that are rearranged once, ahead of many calls.

use std::any::Any;
use std::sync::Arc;

use super::KernelError;
use crate::args::Arg;
use crate::tensor::TensorView;

/// An input in the layout that a kernel reads fastest, for example weights in panels.
pub type PreparedInput = Arc<dyn Any + Send + Sync>;

/// Rearranges constant inputs of a kernel. The kernel finds them with [`Run::prepared`](super::run::Run::prepared). Its results with
/// and without them are equal within the tolerance of the schema.
pub trait Prepare: Send + Sync + 'static {
    /// The name of the layout. Kernels share an input that is prepared in the same layout.
    fn layout(&self) -> &'static str;

    /// The inputs that are worth being rearranged if they are constant, in calls like this one. Only the sizes of `args` may be
    /// used, not their elements.
    fn inputs(&self, args: &[Arg<'_>]) -> &'static [usize];

    /// Rearranges one of these inputs.
    fn prepare(&self, input: &TensorView<'_>) -> Result<PreparedInput, KernelError>;
}
