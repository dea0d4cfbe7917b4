//! `tokenize.decode`, plainly.

use lz_core::KernelError;

use crate::{TokenizeDecodeCall, TokenizeDecodeOut};

/// Runs it.
pub fn run(_call: &TokenizeDecodeCall<'_>, _out: TokenizeDecodeOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
