//! Reference of `mlp.linear`: one dot product in f64 per output.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu};
use crate::reference::index::join;
use crate::{MlpLinearActivation, MlpLinearCall, MlpLinearOut};

/// Runs the operation.
pub fn run(call: &MlpLinearCall<'_>, mut out: MlpLinearOut<'_>) -> Result<(), KernelError> {
    let activation = match call.activation {
        MlpLinearActivation::None => identity,
        MlpLinearActivation::Relu => relu,
        MlpLinearActivation::Silu => silu,
        MlpLinearActivation::Gelu => gelu,
        MlpLinearActivation::GeluTanh => gelu_tanh,
    };
    let shape = out.output.layout().shape;
    for index in Indices::new(&shape) {
        let [row @ .., o] = &*index else { continue };
        let mut sum = 0.0;
        for i in 0..call.axes.in_features {
            sum += call.x.at(&join(&[row, &[i]])) * call.weight.at(&[*o, i]);
        }
        let bias = call.bias.map_or(0.0, |bias| bias.at(&[*o]));
        out.output.set(&index, activation(sum + bias));
    }
    Ok(())
}
