//! Reference of `moe.experts`: every chosen expert of every row in f64, without intermediate rounding.

use lz_core::KernelError;

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu_with};
use crate::reference::gated_experts::GatedExperts;
use crate::{MoeExpertsActivation, MoeExpertsCall, MoeExpertsGateUpLayout, MoeExpertsOut};

/// Runs the operation.
pub fn run(call: &MoeExpertsCall<'_>, mut out: MoeExpertsOut<'_>) -> Result<(), KernelError> {
    let axes = &call.axes;
    GatedExperts {
        rows: axes.rows_dims,
        top_k: axes.top_k,
        in_features: axes.in_features,
        intermediate: axes.intermediate,
        out_features: axes.out_features,
        x: call.x,
        indices: call.indices,
        weights: call.weights,
        gate_up: &|expert, feature, i| call.gate_up_weight.at(&[expert, feature, i]),
        down: &|expert, o, m| call.down_weight.at(&[expert, o, m]),
        gate_up_bias: call.gate_up_bias,
        down_bias: call.down_bias,
        interleaved: call.gate_up_layout == MoeExpertsGateUpLayout::Interleaved,
        activation: &|gate| match call.activation {
            MoeExpertsActivation::None => identity(gate),
            MoeExpertsActivation::Relu => relu(gate),
            MoeExpertsActivation::Silu => silu_with(gate, f64::from(call.alpha)),
            MoeExpertsActivation::Gelu => gelu(gate),
            MoeExpertsActivation::GeluTanh => gelu_tanh(gate),
        },
        limit: f64::from(call.limit),
        up_offset: f64::from(call.up_offset),
    }
    .run(&mut out.output);
    Ok(())
}
