//! Attention. `problem` says what to attend to, `run` cuts it into tasks, `tile` and `stream` are the ways to run one,
//! `matrix` a third for bf16 on AMX, `careful` one for what f32 cannot be trusted with. `short` attends to a few keys without tasks.
//! The other files are the operations: they only translate names.

mod careful;
mod cross;
mod decode;
mod math;
#[cfg(target_arch = "x86_64")]
mod matrix;
mod mla;
mod paged;
mod prefill;
mod problem;
mod ragged;
mod run;
mod short;
mod sparse;
mod stream;
mod task;
#[cfg(test)]
mod tests;
mod tile;

pub(crate) use cross::CrossPrefill;
pub(crate) use decode::{CrossDecode, GqaDecode, StandardDecode};
pub(crate) use mla::{MlaDecode, MlaDecodePaged, MlaPrefill};
pub(crate) use paged::{GqaDecodePaged, GqaPrefillPaged, StandardDecodePaged, StandardPrefillPaged};
pub(crate) use prefill::{GqaPrefill, StandardPrefill};
pub(crate) use ragged::{GqaPrefillRagged, StandardPrefillRagged};
pub(crate) use sparse::{SparseBlock, SparseVariableBlock};
