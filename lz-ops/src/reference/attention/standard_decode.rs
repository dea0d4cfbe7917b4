//! `attention.standard.decode`, plainly.

use lz_core::KernelError;

use crate::{AttentionStandardDecodeCall, AttentionStandardDecodeOut};

/// Runs it.
pub fn run(_call: &AttentionStandardDecodeCall<'_>, _out: AttentionStandardDecodeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
