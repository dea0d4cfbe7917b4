//! `kv.compact`, plainly.

use lz_core::KernelError;

use crate::{KvCompactCall, KvCompactOut};

/// Runs it.
pub fn run(_call: &KvCompactCall<'_>, _out: KvCompactOut<'_>) -> Result<(), KernelError> {
    Err(KernelError::failed("not written yet"))
}
