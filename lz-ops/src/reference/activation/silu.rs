//! Reference of `activation.silu`: each element times its sigmoid, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::silu_with;
use crate::{ActivationSiluCall, ActivationSiluOut};

/// Runs the operation.
pub fn run(call: &ActivationSiluCall<'_>, mut out: ActivationSiluOut<'_>) -> Result<(), KernelError> {
    for index in Indices::new(call.x.shape()) {
        out.output.set(&index, silu_with(call.x.at(&index), f64::from(call.alpha)));
    }
    Ok(())
}
