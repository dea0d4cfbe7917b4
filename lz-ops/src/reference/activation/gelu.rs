//! Reference of `activation.gelu`: each element times its normal CDF, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{gelu, gelu_tanh};
use crate::{ActivationGeluApproximate, ActivationGeluCall, ActivationGeluOut};

/// Runs the operation.
pub fn run(call: &ActivationGeluCall<'_>, mut out: ActivationGeluOut<'_>) -> Result<(), KernelError> {
    let activation = match call.approximate {
        ActivationGeluApproximate::None => gelu,
        ActivationGeluApproximate::Tanh => gelu_tanh,
    };
    for index in Indices::new(call.x.shape()) {
        out.output.set(&index, activation(call.x.at(&index)));
    }
    Ok(())
}
