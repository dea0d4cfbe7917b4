//! Reference of `moe.experts.quantized`: every chosen expert of every row in f64, with dequantized weights.

use lz_core::KernelError;
use lz_core::element::f4_e2m1_to_f64;
use lz_core::tensor::TensorView;

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu_with};
use crate::reference::gated_experts::GatedExperts;
use crate::reference::groups::{packed_code, sign_extended};
use crate::{
    MoeExpertsQuantizedActivation as Activation, MoeExpertsQuantizedCall,
    MoeExpertsQuantizedFormat as Format, MoeExpertsQuantizedGateUpLayout as GateUpLayout,
    MoeExpertsQuantizedGranularity as Granularity, MoeExpertsQuantizedOut,
};

/// Features and inputs per side of a block.
const BLOCK: i64 = 128;

/// Runs the operation.
pub fn run(
    call: &MoeExpertsQuantizedCall<'_>,
    mut out: MoeExpertsQuantizedOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    GatedExperts {
        rows: axes.rows_dims,
        top_k: axes.top_k,
        in_features: axes.in_features,
        intermediate: call.intermediate,
        out_features: axes.out_features,
        x: call.x,
        indices: call.indices,
        weights: call.weights,
        gate_up: &|expert, feature, i| {
            weight(call, &call.gate_up_weight, &call.gate_up_scale, [expert, feature, i])
        },
        down: &|expert, o, m| weight(call, &call.down_weight, &call.down_scale, [expert, o, m]),
        gate_up_bias: call.gate_up_bias,
        down_bias: call.down_bias,
        interleaved: call.gate_up_layout == GateUpLayout::Interleaved,
        activation: &|gate| match call.activation {
            Activation::None => identity(gate),
            Activation::Relu => relu(gate),
            Activation::Silu => silu_with(gate, f64::from(call.alpha)),
            Activation::Gelu => gelu(gate),
            Activation::GeluTanh => gelu_tanh(gate),
        },
        limit: f64::from(call.limit),
        up_offset: f64::from(call.up_offset),
    }
    .run(&mut out.output);
    Ok(())
}

/// Dequantizes one weight.
fn weight(
    call: &MoeExpertsQuantizedCall<'_>,
    codes: &TensorView<'_>,
    scales: &TensorView<'_>,
    element: [i64; 3],
) -> f64 {
    let [expert, feature, i] = element;
    let value = match call.format {
        Format::Fp8E4m3 => codes.at(&element),
        Format::Int8 => codes.int_at(&element) as f64,
        Format::Int4 => sign_extended::<4>(packed_code::<4>(codes, &element)) as f64,
        Format::Mxfp4 => f4_e2m1_to_f64(packed_code::<4>(codes, &element)),
    };
    let scale = match call.granularity {
        Granularity::Tensor => scales.at(&[expert]),
        Granularity::Row => scales.at(&[expert, feature]),
        Granularity::Group => scales.at(&[expert, feature, i / call.group_size]),
        Granularity::Block => scales.at(&[expert, feature / BLOCK, i / BLOCK]),
    };
    value * scale
}
