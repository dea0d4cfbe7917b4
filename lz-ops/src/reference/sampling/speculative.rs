//! `sampling.speculative`, plainly.

use lz_core::KernelError;

use crate::{SamplingSpeculativeCall, SamplingSpeculativeOut};

/// Runs it.
pub fn run(_call: &SamplingSpeculativeCall<'_>, _out: SamplingSpeculativeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
