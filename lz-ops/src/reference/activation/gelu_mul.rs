//! Reference of `activation.gelu_mul`: gate times its normal CDF times up, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{gelu, gelu_tanh};
use crate::{ActivationGeluMulApproximate, ActivationGeluMulCall, ActivationGeluMulOut};

/// Runs the operation.
pub fn run(call: &ActivationGeluMulCall<'_>, mut out: ActivationGeluMulOut<'_>) -> Result<(), KernelError> {
    let activation = match call.approximate {
        ActivationGeluMulApproximate::None => gelu,
        ActivationGeluMulApproximate::Tanh => gelu_tanh,
    };
    for index in Indices::new(call.gate.shape()) {
        out.output.set(&index, activation(call.gate.at(&index)) * call.up.at(&index));
    }
    Ok(())
}
