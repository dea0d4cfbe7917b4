//! Reference of `activation.relu`: negative elements become 0.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::relu;
use crate::{ActivationReluCall, ActivationReluOut};

/// Runs the operation.
pub fn run(call: &ActivationReluCall<'_>, mut out: ActivationReluOut<'_>) -> Result<(), KernelError> {
    for index in Indices::new(call.x.shape()) {
        out.output.set(&index, relu(call.x.at(&index)));
    }
    Ok(())
}
