//! `mlp.linear`, plainly.

use lz_core::KernelError;

use crate::{MlpLinearCall, MlpLinearOut};

/// Runs it.
pub fn run(_call: &MlpLinearCall<'_>, _out: MlpLinearOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
