//! `attention.state.merge`, plainly.

use lz_core::KernelError;

use crate::{AttentionStateMergeCall, AttentionStateMergeOut};

/// Runs it.
pub fn run(_call: &AttentionStateMergeCall<'_>, _out: AttentionStateMergeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
