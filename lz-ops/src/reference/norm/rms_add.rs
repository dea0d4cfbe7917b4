//! `norm.rms.add`, plainly: the sum is rounded into the residual, and what was stored is normalised in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::with;
use crate::{NormRmsAddCall, NormRmsAddOut};

/// Runs it.
pub fn run(call: &NormRmsAddCall<'_>, mut out: NormRmsAddOut<'_>) -> Result<(), KernelError> {
    let hidden = call.axes.hidden;
    for row in Indices::new(&call.axes.rows_dims) {
        let mut sum_of_squares = 0.0;
        for i in 0..hidden {
            let place = with(row, i);
            out.residual.set(&place, call.x.at(&place) + out.residual.as_view().at(&place));
            sum_of_squares += out.residual.as_view().at(&place).powi(2);
        }
        let scale = 1.0 / (sum_of_squares / hidden as f64 + f64::from(call.eps)).sqrt();
        for i in 0..hidden {
            let place = with(row, i);
            let weight = call.weight.map_or(1.0, |weight| weight.at(&[i]) + f64::from(call.weight_offset));
            out.output.set(&place, out.residual.as_view().at(&place) * scale * weight);
        }
    }
    Ok(())
}
