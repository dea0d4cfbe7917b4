//! `sampling.topp`, plainly.

use lz_core::KernelError;

use crate::{SamplingToppCall, SamplingToppOut};

/// Runs it.
pub fn run(_call: &SamplingToppCall<'_>, _out: SamplingToppOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
