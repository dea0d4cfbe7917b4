//! Reference of `sampling.minp`: the candidates of at least p times the largest weight, and one draw among them.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::draw::{candidates, choose, scalar};
use crate::reference::philox::{Stream, block_at, uniform};
use crate::{SamplingMinpCall, SamplingMinpOut};

/// Runs the operation.
pub fn run(call: &SamplingMinpCall<'_>, mut out: SamplingMinpOut<'_>) -> Result<(), KernelError> {
    let seed = scalar(call.seed_tensor, call.seed);
    let offset = scalar(call.offset_tensor, call.offset);
    for (number, row) in (0..).zip(Indices::new(&call.axes.rows_dims)) {
        let mut kept = candidates(&call.logits, row, call.axes.vocab, f64::from(call.temperature));
        let p = call.p_tensor.map_or(f64::from(call.p), |tensor| tensor.at(&row));
        kept.retain(|candidate| candidate.weight >= p);
        let [w0, w1, ..] = block_at(Stream::MinP, seed, offset, number);
        out.tokens.set_int(&row, choose(kept, uniform(w0, w1)));
    }
    Ok(())
}
