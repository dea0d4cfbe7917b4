//! `attention.standard.prefill`, plainly.

use lz_core::KernelError;

use crate::{AttentionStandardPrefillCall, AttentionStandardPrefillOut};

/// Runs it.
pub fn run(_call: &AttentionStandardPrefillCall<'_>, _out: AttentionStandardPrefillOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
