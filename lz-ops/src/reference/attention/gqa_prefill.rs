//! `attention.gqa.prefill`, plainly.

use lz_core::KernelError;

use crate::{AttentionGqaPrefillCall, AttentionGqaPrefillOut};

/// Runs it.
pub fn run(_call: &AttentionGqaPrefillCall<'_>, _out: AttentionGqaPrefillOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
