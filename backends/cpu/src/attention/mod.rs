//! Attention kernels. `problem` describes a call (sequences, KV layout, mask, bias), `run` partitions it into
//! tasks. A task runs on one of three paths: `tile` (packed KV tiles, GEMM micro-kernel, online softmax),
//! `stream` (few rows, KV read once, unpacked) or `amx` (bf16 on AMX tiles). `exact` recomputes single rows
//! in f64 where f32 is not accurate enough. `modified` computes calls with a score expression. `short` handles a few keys without tasks. The other files map
//! operations to a `problem`.

#[cfg(target_arch = "x86_64")]
mod amx;
mod cross;
mod decode;
mod exact;
mod fp8;
mod math;
mod mla;
mod modified;
mod paged;
mod prefill;
mod problem;
mod ragged;
mod run;
mod short;
mod sparse;
mod sparse_topk;
mod stream;
mod task;
mod tile;

pub(crate) use cross::CrossPrefill;
pub(crate) use decode::{CrossDecode, GqaDecode};
pub(crate) use fp8::{GqaDecodePagedFp8, GqaPrefillPagedFp8};
pub(crate) use mla::{MlaDecode, MlaDecodePaged, MlaPrefill};
pub(crate) use modified::{
    ModifiedDecode, ModifiedDecodePaged, ModifiedPrefill, ModifiedPrefillPaged, ModifiedPrefillRagged,
};
pub(crate) use paged::{GqaDecodePaged, GqaPrefillPaged};
pub(crate) use prefill::GqaPrefill;
pub(crate) use ragged::GqaPrefillRagged;
pub(crate) use sparse::{SparseBlock, SparseVariableBlock};
pub(crate) use sparse_topk::SparseTopk;
