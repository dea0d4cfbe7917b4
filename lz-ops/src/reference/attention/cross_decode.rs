//! `attention.cross.decode`, plainly.

use lz_core::KernelError;

use crate::{AttentionCrossDecodeCall, AttentionCrossDecodeOut};

/// Runs it.
pub fn run(_call: &AttentionCrossDecodeCall<'_>, _out: AttentionCrossDecodeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
