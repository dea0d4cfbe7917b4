//! Reference of `norm.layer`: mean, then variance, in two passes in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::with;
use crate::{NormLayerCall, NormLayerOut};

/// Runs the operation.
pub fn run(call: &NormLayerCall<'_>, mut out: NormLayerOut<'_>) -> Result<(), KernelError> {
    let hidden = call.axes.hidden;
    for row in Indices::new(&call.axes.rows_dims) {
        let mean = (0..hidden).map(|i| call.x.at(&with(row, i))).sum::<f64>() / hidden as f64;
        let variance =
            (0..hidden).map(|i| (call.x.at(&with(row, i)) - mean).powi(2)).sum::<f64>() / hidden as f64;
        let inv_std = 1.0 / (variance + f64::from(call.eps)).sqrt();
        for i in 0..hidden {
            let weight = call.weight.map_or(1.0, |weight| weight.at(&[i]));
            let bias = call.bias.map_or(0.0, |bias| bias.at(&[i]));
            let index = with(row, i);
            out.output.set(&index, (call.x.at(&index) - mean) * inv_std * weight + bias);
        }
        if let Some(target) = &mut out.mean {
            target.set(&row, mean);
        }
        if let Some(target) = &mut out.inv_std {
            target.set(&row, inv_std);
        }
    }
    Ok(())
}
