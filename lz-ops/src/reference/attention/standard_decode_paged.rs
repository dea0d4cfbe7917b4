//! `attention.standard.decode.paged`, plainly.

use lz_core::KernelError;

use crate::{AttentionStandardDecodePagedCall, AttentionStandardDecodePagedOut};

/// Runs it.
pub fn run(_call: &AttentionStandardDecodePagedCall<'_>, _out: AttentionStandardDecodePagedOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
