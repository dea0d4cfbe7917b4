//! Reference of `norm.rms.quantize`: each row divided by its root mean square in f64, rounded, then quantized.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::with;
use crate::reference::quantized_rows::{Quantized, Scaling};
use crate::{NormRmsQuantizeCall, NormRmsQuantizeGranularity as Granularity, NormRmsQuantizeOut};

/// Runs the operation.
pub fn run(call: &NormRmsQuantizeCall<'_>, mut out: NormRmsQuantizeOut<'_>) -> Result<(), KernelError> {
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
        let mean_square = (0..hidden).map(|i| call.x.at(&with(row, i)).powi(2)).sum::<f64>() / hidden as f64;
        let factor = 1.0 / (mean_square + f64::from(call.eps)).sqrt();
        let values: Vec<f64> = (0..hidden)
            .map(|i| {
                let weight =
                    call.weight.map_or(1.0, |weight| weight.at(&[i]) + f64::from(call.weight_offset));
                call.x.at(&with(row, i)) * factor * weight
            })
            .collect();
        quantized.row(row, &values, call.x.dtype())?;
    }
    Ok(())
}
