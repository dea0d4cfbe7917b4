//! Linear layers and gated MLPs. Few rows stream the weights once (skinny GEMM), many rows use the blocked
//! GEMM. `weights` packs f32 weights ahead of calls, `packed_words` is the layout of integer weights.

mod activation;
mod batch_invariant;
mod fp4;
mod fp8;
mod fused;
#[cfg(target_arch = "x86_64")]
mod fused_amx;
mod int8;
mod linear;
mod output;
mod pack;
mod packed_words;
mod unpacked;
mod weight_only;
mod weights;

pub(crate) use activation::{Identity, WithActivation};
pub(crate) use batch_invariant::BatchInvariantLinear;
pub(crate) use fp4::LinearFp4;
pub(crate) use fp8::LinearFp8;
pub(crate) use fused::Fused;
#[cfg(target_arch = "x86_64")]
pub(crate) use fused_amx::store_split_bf16;
pub(crate) use int8::LinearInt8;
pub(crate) use linear::Linear;
pub(crate) use pack::LinearPack;
pub(crate) use weight_only::LinearWeightOnly;

/// Rows of weights that one task streams: about a quarter of a megabyte, in whole groups.
pub(crate) fn grain(bytes: usize) -> usize {
    ((1 << 18) / bytes.max(1)).next_multiple_of(8).max(8)
}
