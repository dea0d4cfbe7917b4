//! `kv.append`, plainly.

use lz_core::KernelError;

use crate::{KvAppendCall, KvAppendOut};

/// Runs it.
pub fn run(_call: &KvAppendCall<'_>, _out: KvAppendOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
