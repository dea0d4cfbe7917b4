//! Reference of `posenc.alibi`: each score plus its head's slope times the distance between key and query.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::{PosencAlibiCall, PosencAlibiOut};

/// Runs the operation.
pub fn run(call: &PosencAlibiCall<'_>, mut out: PosencAlibiOut<'_>) -> Result<(), KernelError> {
    for index in Indices::new(call.scores.shape()) {
        let [_, head, query, key] = *index else { continue };
        let distance = key as f64 - (query as f64 + call.causal_offset as f64);
        out.output.set(&index, call.scores.at(&index) + call.slopes.at(&[head]) * distance);
    }
    Ok(())
}
