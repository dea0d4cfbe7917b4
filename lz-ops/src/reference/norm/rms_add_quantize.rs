//! Reference of `norm.rms.add.quantize`: the sum is rounded into the residual, and the stored value is normalized in
//! f64, rounded and quantized.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::with;
use crate::reference::quantized_rows::{Quantized, Scaling};
use crate::{NormRmsAddQuantizeCall, NormRmsAddQuantizeGranularity as Granularity, NormRmsAddQuantizeOut};

/// Runs the operation.
pub fn run(call: &NormRmsAddQuantizeCall<'_>, mut out: NormRmsAddQuantizeOut<'_>) -> Result<(), KernelError> {
    let hidden = call.axes.hidden;
    let mut quantized = Quantized {
        scaling: match call.granularity {
            Granularity::Tensor => Scaling::Tensor,
            Granularity::Row => Scaling::Row,
            Granularity::Block => Scaling::Block(call.block_size),
        },
        scale: call.scale,
        codes: &mut out.quantized,
        scale_out: out.scale_out.as_mut(),
    };
    for row in Indices::new(&call.axes.rows_dims) {
        let mut sum_of_squares = 0.0;
        for i in 0..hidden {
            let index = with(row, i);
            out.residual.set(&index, call.x.at(&index) + out.residual.as_view().at(&index));
            sum_of_squares += out.residual.as_view().at(&index).powi(2);
        }
        let factor = 1.0 / (sum_of_squares / hidden as f64 + f64::from(call.eps)).sqrt();
        let values: Vec<f64> = (0..hidden)
            .map(|i| {
                let weight =
                    call.weight.map_or(1.0, |weight| weight.at(&[i]) + f64::from(call.weight_offset));
                out.residual.as_view().at(&with(row, i)) * factor * weight
            })
            .collect();
        quantized.row(row, &values, call.x.dtype())?;
    }
    Ok(())
}
