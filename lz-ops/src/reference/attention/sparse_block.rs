//! `attention.sparse.block`, plainly.

use lz_core::KernelError;

use crate::{AttentionSparseBlockCall, AttentionSparseBlockOut};

/// Runs it.
pub fn run(_call: &AttentionSparseBlockCall<'_>, _out: AttentionSparseBlockOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
