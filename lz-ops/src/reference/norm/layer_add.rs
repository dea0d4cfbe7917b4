//! Reference of `norm.layer.add`: the sum is rounded into the residual; mean, then variance of the stored values, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::with;
use crate::{NormLayerAddCall, NormLayerAddOut};

/// Runs the operation.
pub fn run(call: &NormLayerAddCall<'_>, mut out: NormLayerAddOut<'_>) -> Result<(), KernelError> {
    let hidden = call.axes.hidden;
    for row in Indices::new(&call.axes.rows_dims) {
        for i in 0..hidden {
            let index = with(row, i);
            out.residual.set(&index, call.x.at(&index) + out.residual.as_view().at(&index));
        }
        let sum = out.residual.as_view();
        let mean = (0..hidden).map(|i| sum.at(&with(row, i))).sum::<f64>() / hidden as f64;
        let variance =
            (0..hidden).map(|i| (sum.at(&with(row, i)) - mean).powi(2)).sum::<f64>() / hidden as f64;
        let inv_std = 1.0 / (variance + f64::from(call.eps)).sqrt();
        for i in 0..hidden {
            let weight = call.weight.map_or(1.0, |weight| weight.at(&[i]));
            let bias = call.bias.map_or(0.0, |bias| bias.at(&[i]));
            let index = with(row, i);
            out.output.set(&index, (sum.at(&index) - mean) * inv_std * weight + bias);
        }
    }
    Ok(())
}
