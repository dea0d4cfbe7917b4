//! `attention.gqa.decode.paged`, plainly.

use lz_core::KernelError;

use crate::{AttentionGqaDecodePagedCall, AttentionGqaDecodePagedOut};

/// Runs it.
pub fn run(_call: &AttentionGqaDecodePagedCall<'_>, _out: AttentionGqaDecodePagedOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
