//! `activation.silu`, plainly.

use lz_core::KernelError;

use crate::{ActivationSiluCall, ActivationSiluOut};

/// Runs it.
pub fn run(_call: &ActivationSiluCall<'_>, _out: ActivationSiluOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
