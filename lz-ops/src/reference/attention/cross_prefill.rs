//! `attention.cross.prefill`, plainly.

use lz_core::KernelError;

use crate::{AttentionCrossPrefillCall, AttentionCrossPrefillOut};

/// Runs it.
pub fn run(_call: &AttentionCrossPrefillCall<'_>, _out: AttentionCrossPrefillOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
