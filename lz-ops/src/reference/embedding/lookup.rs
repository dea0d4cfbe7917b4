//! Reference of `embedding.lookup`: copies rows bit by bit.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::{EmbeddingLookupCall, EmbeddingLookupOut};

/// Runs the operation.
pub fn run(call: &EmbeddingLookupCall<'_>, mut out: EmbeddingLookupOut<'_>) -> Result<(), KernelError> {
    let table = call.table.bits();
    let shape = out.output.layout().shape;
    for index in Indices::new(&shape) {
        let [token @ .., feature] = &*index else { continue };
        let row = call.ids.int_at(token);
        out.output.bits_mut().set_int(&index, table.int_at(&[row, *feature]));
    }
    Ok(())
}
