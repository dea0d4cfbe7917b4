//! Reference of `mlp.linear.int8`: one integer dot product per output, then its scales.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu};
use crate::reference::index::join;
use crate::reference::panels::byte_at;
use crate::{
    MlpLinearInt8Activation as Activation, MlpLinearInt8Call, MlpLinearInt8Out,
    MlpLinearInt8WeightLayout as Layout, MlpLinearInt8XGranularity as Granularity,
};

/// Runs the operation.
pub fn run(call: &MlpLinearInt8Call<'_>, mut out: MlpLinearInt8Out<'_>) -> Result<(), KernelError> {
    let activation = match call.activation {
        Activation::None => identity,
        Activation::Relu => relu,
        Activation::Silu => silu,
        Activation::Gelu => gelu,
        Activation::GeluTanh => gelu_tanh,
    };
    let panels = call.weight_layout == Layout::Panels;
    let shape = out.output.layout().shape;
    for index in Indices::new(&shape) {
        let [row @ .., o] = &*index else { continue };
        let group = if call.x_granularity == Granularity::Row { row } else { &[] };
        let zero_point = call.x_zero_point.map_or(0, |tensor| tensor.int_at(group));
        // Products have at most 40 bits, so the sum of any row that fits in memory is exact.
        let mut sum = 0i64;
        for i in 0..call.axes.in_features {
            let x = call.x.int_at(&join(&[row, &[i]])) - zero_point;
            sum += x * byte_at(&call.weight, panels, *o, i);
        }
        let scale = call.x_scale.at(group) * call.weight_scale.at(&[*o]);
        let bias = call.bias.map_or(0.0, |bias| bias.at(&[*o]));
        out.output.set(&index, activation(sum as f64 * scale + bias));
    }
    Ok(())
}
