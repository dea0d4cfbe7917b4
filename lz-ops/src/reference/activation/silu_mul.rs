//! Reference of `activation.silu_mul`: gate times its sigmoid times up, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::silu;
use crate::{ActivationSiluMulCall, ActivationSiluMulOut};

/// Runs the operation.
pub fn run(call: &ActivationSiluMulCall<'_>, mut out: ActivationSiluMulOut<'_>) -> Result<(), KernelError> {
    for index in Indices::new(call.gate.shape()) {
        out.output.set(&index, silu(call.gate.at(&index)) * call.up.at(&index));
    }
    Ok(())
}
