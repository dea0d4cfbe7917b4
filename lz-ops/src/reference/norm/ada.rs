//! Reference of `norm.ada`: mean, then variance of each row, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::{NormAdaCall, NormAdaOut};

/// Runs the operation.
pub fn run(call: &NormAdaCall<'_>, mut out: NormAdaOut<'_>) -> Result<(), KernelError> {
    let hidden = call.axes.hidden;
    for index in Indices::new(&[call.axes.batch, call.axes.seq]) {
        let [b, t] = *index else { continue };
        let x = |i: i64| call.x.at(&[b, t, i]);
        let mean = (0..hidden).map(x).sum::<f64>() / hidden as f64;
        let variance = (0..hidden).map(|i| (x(i) - mean).powi(2)).sum::<f64>() / hidden as f64;
        let inv_std = 1.0 / (variance + f64::from(call.eps)).sqrt();
        for i in 0..hidden {
            let value = (x(i) - mean) * inv_std * (1.0 + call.scale.at(&[b, i])) + call.shift.at(&[b, i]);
            out.output.set(&[b, t, i], value);
        }
    }
    Ok(())
}
