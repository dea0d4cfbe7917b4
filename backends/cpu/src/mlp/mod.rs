//! Linear layers and gated blocks: a few rows stream the weights once, many rows go through the blocked product.

mod activation;
mod fused;
mod linear;
#[cfg(test)]
mod tests;

pub(crate) use fused::Fused;
pub(crate) use linear::Linear;

/// How many rows of weights one task streams: about a quarter of a megabyte, in whole groups.
fn grain(bytes: usize) -> usize {
    ((1 << 18) / bytes.max(1)).next_multiple_of(8).max(8)
}
