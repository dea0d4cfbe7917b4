//! Reference of `mlp.fused`: gate, up and down projections in f64, without intermediate rounding.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu};
use crate::reference::index::with;
use crate::{MlpFusedActivation, MlpFusedCall, MlpFusedOut};

/// Runs the operation.
pub fn run(call: &MlpFusedCall<'_>, mut out: MlpFusedOut<'_>) -> Result<(), KernelError> {
    let activation = match call.activation {
        MlpFusedActivation::None => identity,
        MlpFusedActivation::Relu => relu,
        MlpFusedActivation::Silu => silu,
        MlpFusedActivation::Gelu => gelu,
        MlpFusedActivation::GeluTanh => gelu_tanh,
    };
    // Without outputs there may still be any number of rows to iterate over.
    if out.output.elements() == 0 {
        return Ok(());
    }
    for row in Indices::new(&call.axes.rows_dims) {
        let mut sums: Vec<f64> = (0..call.axes.out_features).map(|_| 0.0).collect();
        for m in 0..call.axes.intermediate {
            let (mut gate, mut up) = (0.0, 0.0);
            for i in 0..call.axes.in_features {
                let x = call.x.at(&with(row, i));
                gate += x * call.gate_weight.at(&[m, i]);
                up += x * call.up_weight.at(&[m, i]);
            }
            for (o, sum) in (0..).zip(&mut sums) {
                *sum += activation(gate) * up * call.down_weight.at(&[o, m]);
            }
        }
        for (o, sum) in (0..).zip(&sums) {
            out.output.set(&with(row, o), *sum);
        }
    }
    Ok(())
}
