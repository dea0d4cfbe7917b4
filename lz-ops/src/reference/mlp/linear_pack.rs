//! Reference of `mlp.linear.pack`: byte by byte.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::panels::{ROWS, WORD};
use crate::{MlpLinearPackCall, MlpLinearPackOut};

/// Runs the operation.
pub fn run(call: &MlpLinearPackCall<'_>, mut out: MlpLinearPackOut<'_>) -> Result<(), KernelError> {
    let shape = out.packed.layout().shape;
    for index in Indices::new(&shape) {
        let [panel, word, row, byte] = &*index else { continue };
        let (row, byte) = (panel * ROWS + row, word * WORD + byte);
        let in_range = row < call.axes.out_features && byte < call.axes.stored;
        out.packed.set_int(&index, if in_range { call.weight.int_at(&[row, byte]) } else { 0 });
    }
    Ok(())
}
