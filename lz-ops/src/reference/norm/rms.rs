//! Reference of `norm.rms`: each row divided by its root mean square, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::index::{join, with};
use crate::{NormRmsCall, NormRmsOut};

/// Runs the operation.
pub fn run(call: &NormRmsCall<'_>, mut out: NormRmsOut<'_>) -> Result<(), KernelError> {
    let hidden = call.axes.hidden;
    for row in Indices::new(&call.axes.rows_dims) {
        let mean_square = (0..hidden).map(|i| call.x.at(&with(row, i)).powi(2)).sum::<f64>() / hidden as f64;
        let scale = 1.0 / (mean_square + f64::from(call.eps)).sqrt();
        for i in 0..hidden {
            let weight = call.weight.map_or(1.0, |weight| weight.at(&[i]) + f64::from(call.weight_offset));
            out.output.set(&join(&[&row, &[i]]), call.x.at(&with(row, i)) * scale * weight);
        }
    }
    Ok(())
}
