//! `norm.layer`, plainly.

use lz_core::KernelError;

use crate::{NormLayerCall, NormLayerOut};

/// Runs it.
pub fn run(_call: &NormLayerCall<'_>, _out: NormLayerOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
