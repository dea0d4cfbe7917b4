//! `embedding.lookup`, plainly.

use lz_core::KernelError;

use crate::{EmbeddingLookupCall, EmbeddingLookupOut};

/// Runs it.
pub fn run(_call: &EmbeddingLookupCall<'_>, _out: EmbeddingLookupOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
