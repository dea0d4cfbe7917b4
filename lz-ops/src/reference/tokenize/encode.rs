//! `tokenize.encode`, plainly.

use lz_core::KernelError;

use crate::{TokenizeEncodeCall, TokenizeEncodeOut};

/// Runs it.
pub fn run(_call: &TokenizeEncodeCall<'_>, _out: TokenizeEncodeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
