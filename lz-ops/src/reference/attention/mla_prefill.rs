//! `attention.mla.prefill`, plainly.

use lz_core::KernelError;

use crate::{AttentionMlaPrefillCall, AttentionMlaPrefillOut};

/// Runs it.
pub fn run(_call: &AttentionMlaPrefillCall<'_>, _out: AttentionMlaPrefillOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
