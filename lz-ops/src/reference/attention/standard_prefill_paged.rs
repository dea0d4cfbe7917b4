//! `attention.standard.prefill.paged`, plainly.

use lz_core::KernelError;

use crate::{AttentionStandardPrefillPagedCall, AttentionStandardPrefillPagedOut};

/// Runs it.
pub fn run(_call: &AttentionStandardPrefillPagedCall<'_>, _out: AttentionStandardPrefillPagedOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
