//! Reference of `activation.relu_squared`: negative elements become 0, the others are squared, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::relu;
use crate::{ActivationReluSquaredCall, ActivationReluSquaredOut};

/// Runs the operation.
pub fn run(
    call: &ActivationReluSquaredCall<'_>,
    mut out: ActivationReluSquaredOut<'_>,
) -> Result<(), KernelError> {
    for index in Indices::new(call.x.shape()) {
        out.output.set(&index, relu(call.x.at(&index)).powi(2));
    }
    Ok(())
}
