//! `posenc.alibi`, plainly.

use lz_core::KernelError;

use crate::{PosencAlibiCall, PosencAlibiOut};

/// Runs it.
pub fn run(_call: &PosencAlibiCall<'_>, _out: PosencAlibiOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
