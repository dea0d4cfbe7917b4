//! `activation.silu_mul`, plainly.

use lz_core::KernelError;

use crate::{ActivationSiluMulCall, ActivationSiluMulOut};

/// Runs it.
pub fn run(_call: &ActivationSiluMulCall<'_>, _out: ActivationSiluMulOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
