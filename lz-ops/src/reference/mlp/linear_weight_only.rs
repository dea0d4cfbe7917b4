//! Reference of `mlp.linear.weight_only`: one dot product in f64 per output.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu};
use crate::reference::groups::{Groups, sign_extended};
use crate::reference::index::join;
use crate::reference::panels::byte_at;
use crate::{
    MlpLinearWeightOnlyActivation as Activation, MlpLinearWeightOnlyCall,
    MlpLinearWeightOnlyFormat as Format, MlpLinearWeightOnlyGranularity as Granularity,
    MlpLinearWeightOnlyOut, MlpLinearWeightOnlyWeightLayout as Layout,
};

/// Runs the operation.
pub fn run(
    call: &MlpLinearWeightOnlyCall<'_>,
    mut out: MlpLinearWeightOnlyOut<'_>,
) -> Result<(), KernelError> {
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
            sum += call.x.at(&join(&[row, &[i]])) * weight(call, *o, i);
        }
        let bias = call.bias.map_or(0.0, |bias| bias.at(&[*o]));
        out.output.set(&index, activation(sum + bias));
    }
    Ok(())
}

/// Dequantizes one weight.
fn weight(call: &MlpLinearWeightOnlyCall<'_>, o: i64, i: i64) -> f64 {
    let panels = call.weight_layout == Layout::Panels;
    let value = match call.format {
        Format::Int8 => byte_at(&call.weight, panels, o, i),
        Format::Int4 => {
            let byte = byte_at(&call.weight, panels, o, i / 2) as u8;
            sign_extended::<4>(if i % 2 == 1 { byte >> 4 } else { byte & 15 })
        }
    };
    let group = match call.granularity {
        Granularity::Channel => Groups::Channel.of(&[o, i]),
        Granularity::Block => Groups::Block(call.block_size).of(&[o, i]),
    };
    let zero_point = call.zero_point.map_or(0, |tensor| tensor.int_at(&group));
    (value - zero_point) as f64 * call.scale.at(&group)
}
