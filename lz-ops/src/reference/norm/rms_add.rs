//! Reference of `norm.rms.add`: the sum is rounded into the residual, and the stored value is normalized in
//! f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::with;
use crate::{NormRmsAddCall, NormRmsAddOut};

/// Runs the operation.
pub fn run(call: &NormRmsAddCall<'_>, mut out: NormRmsAddOut<'_>) -> Result<(), KernelError> {
    let hidden = call.axes.hidden;
    for row in Indices::new(&call.axes.rows_dims) {
        let mut sum_of_squares = 0.0;
        for i in 0..hidden {
            let index = with(row, i);
            out.residual.set(&index, call.x.at(&index) + out.residual.as_view().at(&index));
            sum_of_squares += out.residual.as_view().at(&index).powi(2);
        }
        let scale = 1.0 / (sum_of_squares / hidden as f64 + f64::from(call.eps)).sqrt();
        for i in 0..hidden {
            let index = with(row, i);
            let weight = call.weight.map_or(1.0, |weight| weight.at(&[i]) + f64::from(call.weight_offset));
            out.output.set(&index, out.residual.as_view().at(&index) * scale * weight);
        }
    }
    Ok(())
}
