//! Sampling without sorting the whole vocabulary, with exactly the tokens of the reference.
//!
//! `scan` reads a row of logits, `cutoff` finds which candidates are kept, and the draw sums their weights in
//! index order, in f64, like the reference. `flat` does both for flat distributions. Where an estimate is not
//! accurate enough to guarantee the reference's token, the row is sorted.

mod cutoff;
pub mod flat;
mod logprobs;
mod mask;
mod minp;
mod penalties;
mod scan;
mod speculative;
mod topk;
mod topp;

pub(crate) use logprobs::Logprobs;
pub(crate) use mask::Mask;
pub(crate) use minp::MinP;
pub(crate) use penalties::Penalties;
pub(crate) use speculative::Speculative;
pub(crate) use topk::TopK;
pub(crate) use topp::TopP;

use lz_core::{KernelError, TensorView};

use crate::pool;
use crate::rows::{read_scalar, should_parallelize};

/// Maximum rows that are processed at once; each has its own scratch memory.
pub(crate) const SLOTS: usize = 16;

/// A seed or offset: from the tensor if there is one, otherwise from the parameter.
pub(crate) fn scalar(tensor: Option<&TensorView<'_>>, param: i64) -> Result<i64, KernelError> {
    tensor.map_or(Ok(param), read_scalar::<i64>)
}

/// Runs `body` for each slot with its range of rows. The partition depends only on the number of rows.
pub(crate) fn for_each_slot(rows: usize, bytes: usize, body: impl Fn(usize, std::ops::Range<usize>) + Sync) {
    let slots = rows.min(SLOTS);
    let task = |slot: usize| body(slot, slot * rows / slots..(slot + 1) * rows / slots);
    pool::for_each_if(should_parallelize(rows * bytes), slots, &task);
}

/// The first token, in the given order, whose cumulative weight exceeds `u` times the total.
pub(crate) fn choose(weights: impl Iterator<Item = (i32, f64)> + Clone, u: f64) -> i32 {
    let total: f64 = weights.clone().map(|(_, weight)| weight).sum();
    let (mut sum, mut last) = (0.0, -1);
    for (token, weight) in weights {
        sum += weight;
        if sum > u * total {
            return token;
        }
        if weight > 0.0 {
            last = token;
        }
    }
    last
}
