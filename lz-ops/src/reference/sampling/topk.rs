//! Reference of `sampling.topk`: the k most likely candidates, and one draw among them.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::draw::{candidates, choose, scalar};
use crate::reference::philox::{Stream, block_at, uniform};
use crate::{SamplingTopkCall, SamplingTopkOut};

/// Runs the operation.
pub fn run(call: &SamplingTopkCall<'_>, mut out: SamplingTopkOut<'_>) -> Result<(), KernelError> {
    let seed = scalar(call.seed_tensor, call.seed);
    let offset = scalar(call.offset_tensor, call.offset);
    for (number, row) in (0..).zip(Indices::new(&call.axes.rows_dims)) {
        let mut kept = candidates(&call.logits, row, call.axes.vocab, f64::from(call.temperature));
        let k = call.k_tensor.map_or(call.k, |tensor| tensor.int_at(&row));
        kept.truncate(usize::try_from(k).unwrap_or(0));
        let [w0, w1, ..] = block_at(Stream::TopK, seed, offset, number);
        out.tokens.set_int(&row, choose(kept, uniform(w0, w1)));
    }
    Ok(())
}
