//! `attention.gqa.prefill.paged`, plainly.

use lz_core::KernelError;

use crate::{AttentionGqaPrefillPagedCall, AttentionGqaPrefillPagedOut};

/// Runs it.
pub fn run(_call: &AttentionGqaPrefillPagedCall<'_>, _out: AttentionGqaPrefillPagedOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
