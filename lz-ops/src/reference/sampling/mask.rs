//! Reference of `sampling.mask`: one bit per token.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::join;
use crate::{SamplingMaskCall, SamplingMaskOut};

/// Runs the operation.
pub fn run(call: &SamplingMaskCall<'_>, mut out: SamplingMaskOut<'_>) -> Result<(), KernelError> {
    for index in Indices::new(call.logits.shape()) {
        let [row @ .., token] = &*index else { continue };
        let word = call.bitmask.int_at(&join(&[row, &[token / 32]]));
        let allowed = word >> (token % 32) & 1 == 1;
        out.output.set(&index, if allowed { call.logits.at(&index) } else { f64::NEG_INFINITY });
    }
    Ok(())
}
