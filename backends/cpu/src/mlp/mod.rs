//! Linear layers and gated blocks: a few rows stream the weights once, many rows go through the blocked product. `words` is how
//! layers of integers see their weights.

mod activation;
mod fused;
#[cfg(target_arch = "x86_64")]
mod fused_tiles;
mod int8;
mod linear;
mod pack;
mod straight;
#[cfg(test)]
mod tests;
mod weight_only;
mod words;

pub(crate) use fused::Fused;
pub(crate) use int8::LinearInt8;
pub(crate) use linear::Linear;
pub(crate) use pack::LinearPack;
pub(crate) use weight_only::LinearWeightOnly;

/// How many rows of weights one task streams: about a quarter of a megabyte, in whole groups.
fn grain(bytes: usize) -> usize {
    ((1 << 18) / bytes.max(1)).next_multiple_of(8).max(8)
}
