//! Reference of `conv.causal1d`: one sum over the taps per output.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{identity, silu};
use crate::{ConvCausal1dActivation, ConvCausal1dCall, ConvCausal1dOut};

/// Runs the operation.
pub fn run(call: &ConvCausal1dCall<'_>, mut out: ConvCausal1dOut<'_>) -> Result<(), KernelError> {
    let (width, seq) = (call.axes.width, call.axes.seq);
    let activation = match call.activation {
        ConvCausal1dActivation::None => identity,
        ConvCausal1dActivation::Silu => silu,
    };
    let input = |b: i64, t: i64, c: i64| match call.initial_state {
        _ if t >= 0 => call.x.at(&[b, t, c]),
        Some(state) => state.at(&[b, c, t + width - 1]),
        None => 0.0,
    };
    for index in Indices::new(call.x.shape()) {
        let [b, t, c] = *index else { continue };
        let products = (0..width).map(|k| call.weight.at(&[c, k]) * input(b, t + k - width + 1, c));
        let bias = call.bias.map_or(0.0, |bias| bias.at(&[c]));
        out.output.set(&index, activation(products.sum::<f64>() + bias));
    }
    if let Some(state) = &mut out.final_state {
        for index in Indices::new(&[call.axes.batch, call.axes.channels, width - 1]) {
            let [b, c, j] = *index else { continue };
            state.set(&index, input(b, seq + j - width + 1, c));
        }
    }
    Ok(())
}
