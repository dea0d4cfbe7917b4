//! `attention.standard.prefill.ragged`, plainly.

use lz_core::KernelError;

use crate::{AttentionStandardPrefillRaggedCall, AttentionStandardPrefillRaggedOut};

/// Runs it.
pub fn run(_call: &AttentionStandardPrefillRaggedCall<'_>, _out: AttentionStandardPrefillRaggedOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
