//! `attention.gqa.prefill.ragged`, plainly.

use lz_core::KernelError;

use crate::{AttentionGqaPrefillRaggedCall, AttentionGqaPrefillRaggedOut};

/// Runs it.
pub fn run(_call: &AttentionGqaPrefillRaggedCall<'_>, _out: AttentionGqaPrefillRaggedOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
