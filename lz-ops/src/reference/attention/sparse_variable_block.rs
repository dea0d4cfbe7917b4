//! `attention.sparse.variable_block`, plainly.

use lz_core::KernelError;

use crate::{AttentionSparseVariableBlockCall, AttentionSparseVariableBlockOut};

/// Runs it.
pub fn run(_call: &AttentionSparseVariableBlockCall<'_>, _out: AttentionSparseVariableBlockOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
