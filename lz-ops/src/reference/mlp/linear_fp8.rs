//! Reference of `mlp.linear.fp8`: one dot product in f64 per output.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu};
use crate::reference::index::join;
use crate::{
    MlpLinearFp8Activation as Activation, MlpLinearFp8Call, MlpLinearFp8Out,
    MlpLinearFp8WeightGranularity as WeightGranularity, MlpLinearFp8XGranularity as XGranularity,
};

/// Elements per side of a block.
const BLOCK: i64 = 128;

/// Runs the operation.
pub fn run(call: &MlpLinearFp8Call<'_>, mut out: MlpLinearFp8Out<'_>) -> Result<(), KernelError> {
    let activation = match call.activation {
        Activation::None => identity,
        Activation::Relu => relu,
        Activation::Silu => silu,
        Activation::Gelu => gelu,
        Activation::GeluTanh => gelu_tanh,
    };
    let shape = out.output.layout().shape;
    for index in Indices::new(&shape) {
        let [row @ .., o] = &*index else { continue };
        let mut sum = 0.0;
        for i in 0..call.axes.in_features {
            let x_scale = match call.x_granularity {
                XGranularity::Tensor => call.x_scale.at(&[]),
                XGranularity::Row => call.x_scale.at(row),
                XGranularity::Block => call.x_scale.at(&join(&[row, &[i / BLOCK]])),
            };
            let weight_scale = match call.weight_granularity {
                WeightGranularity::Tensor => call.weight_scale.at(&[]),
                WeightGranularity::Row => call.weight_scale.at(&[*o]),
                WeightGranularity::Block => call.weight_scale.at(&[*o / BLOCK, i / BLOCK]),
            };
            sum += call.x.at(&join(&[row, &[i]])) * x_scale * (call.weight.at(&[*o, i]) * weight_scale);
        }
        let bias = call.bias.map_or(0.0, |bias| bias.at(&[*o]));
        out.output.set(&index, activation(sum + bias));
    }
    Ok(())
}
