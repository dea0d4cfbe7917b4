//! Sampling without a sort of the whole vocabulary, and yet token for token what the reference draws.
//!
//! `scan` walks over a row of logits, `keep` finds which candidates are kept, and the draw takes their weights in order of the
//! index, in f64, as the reference does; `flat` does both where much of the vocabulary is kept. Where an estimate cannot tell the reference's answer for sure, the row is sorted.

mod flat;
mod keep;
mod scan;
mod speculative;
#[cfg(test)]
mod tests;
mod topk;
mod topp;

pub(crate) use speculative::Speculative;
pub(crate) use topk::TopK;
pub(crate) use topp::TopP;

use lz_core::{KernelError, TensorView};

use crate::pool;
use crate::rows::{read_scalar, should_parallelize};

/// Most rows that are looked at at once; each has scratch memory of its own.
pub(crate) const SLOTS: usize = 16;

/// A seed or offset: the tensor's where there is one.
pub(crate) fn scalar(tensor: Option<&TensorView<'_>>, param: i64) -> Result<i64, KernelError> {
    tensor.map_or(Ok(param), read_scalar::<i64>)
}

/// Runs `body` for each of so many slots with the rows that are its own. The cut depends on the number of rows alone.
pub(crate) fn for_each_slot(rows: usize, bytes: usize, body: impl Fn(usize, std::ops::Range<usize>) + Sync) {
    let slots = rows.min(SLOTS);
    let task = |slot: usize| body(slot, slot * rows / slots..(slot + 1) * rows / slots);
    if should_parallelize(rows * bytes) {
        pool::for_each(slots, &task);
    } else {
        (0..slots).for_each(task);
    }
}

/// The first token, in the order given, whose running sum of weights is beyond `u` times their total.
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
