//! `attention.mla.decode`, plainly.

use lz_core::KernelError;

use crate::{AttentionMlaDecodeCall, AttentionMlaDecodeOut};

/// Runs it.
pub fn run(_call: &AttentionMlaDecodeCall<'_>, _out: AttentionMlaDecodeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
