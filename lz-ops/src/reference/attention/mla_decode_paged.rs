//! `attention.mla.decode.paged`, plainly.

use lz_core::KernelError;

use crate::{AttentionMlaDecodePagedCall, AttentionMlaDecodePagedOut};

/// Runs it.
pub fn run(_call: &AttentionMlaDecodePagedCall<'_>, _out: AttentionMlaDecodePagedOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
