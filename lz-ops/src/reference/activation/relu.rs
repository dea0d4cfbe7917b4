//! `activation.relu`, plainly.

use lz_core::KernelError;

use crate::{ActivationReluCall, ActivationReluOut};

/// Runs it.
pub fn run(_call: &ActivationReluCall<'_>, _out: ActivationReluOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
