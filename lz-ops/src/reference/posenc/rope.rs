//! `posenc.rope`, plainly.

use lz_core::KernelError;

use crate::{PosencRopeCall, PosencRopeOut};

/// Runs it.
pub fn run(_call: &PosencRopeCall<'_>, _out: PosencRopeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
