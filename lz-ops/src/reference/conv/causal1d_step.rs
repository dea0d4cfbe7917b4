//! Reference of `conv.causal1d.step`: one sum over the taps per channel, then the shift.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{identity, silu};
use crate::{ConvCausal1dStepActivation, ConvCausal1dStepCall, ConvCausal1dStepOut};

/// Runs the operation.
pub fn run(call: &ConvCausal1dStepCall<'_>, mut out: ConvCausal1dStepOut<'_>) -> Result<(), KernelError> {
    let width = call.axes.width;
    let activation = match call.activation {
        ConvCausal1dStepActivation::None => identity,
        ConvCausal1dStepActivation::Silu => silu,
    };
    for index in Indices::new(call.x.shape()) {
        let [b, c] = *index else { continue };
        let mut inputs: Vec<f64> = (0..width - 1).map(|j| out.state.as_view().at(&[b, c, j])).collect();
        inputs.push(call.x.at(&index));
        let products = (0..).zip(&inputs).map(|(k, input)| call.weight.at(&[c, k]) * input);
        let bias = call.bias.map_or(0.0, |bias| bias.at(&[c]));
        out.output.set(&index, activation(products.sum::<f64>() + bias));
        for (j, input) in (0..).zip(&inputs[1..]) {
            out.state.set(&[b, c, j], *input);
        }
    }
    Ok(())
}
