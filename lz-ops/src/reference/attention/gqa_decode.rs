//! `attention.gqa.decode`, plainly.

use lz_core::KernelError;

use crate::{AttentionGqaDecodeCall, AttentionGqaDecodeOut};

/// Runs it.
pub fn run(_call: &AttentionGqaDecodeCall<'_>, _out: AttentionGqaDecodeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
