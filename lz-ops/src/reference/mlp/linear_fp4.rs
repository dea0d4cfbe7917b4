//! Reference of `mlp.linear.fp4`: one dot product in f64 per output.

use lz_core::KernelError;
use lz_core::element::f4_e2m1_to_f64;
use lz_core::tensor::{Indices, TensorView};

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu};
use crate::reference::groups::packed_code;
use crate::reference::index::join;
use crate::{
    MlpLinearFp4Activation as Activation, MlpLinearFp4Call, MlpLinearFp4Format as Format, MlpLinearFp4Out,
};

/// Runs the operation.
pub fn run(call: &MlpLinearFp4Call<'_>, mut out: MlpLinearFp4Out<'_>) -> Result<(), KernelError> {
    let activation = match call.activation {
        Activation::None => identity,
        Activation::Relu => relu,
        Activation::Silu => silu,
        Activation::Gelu => gelu,
        Activation::GeluTanh => gelu_tanh,
    };
    let block = match call.format {
        Format::Mxfp4 => 32,
        Format::Nvfp4 => 16,
    };
    let global = |scale: Option<TensorView<'_>>| scale.map_or(1.0, |scale| scale.at(&[]));
    let (x_global, weight_global) = (global(call.x_global_scale), global(call.weight_global_scale));
    let value = |codes: &TensorView<'_>, scale: &TensorView<'_>, global: f64, row: &[i64], i: i64| {
        let code = packed_code::<4>(codes, &join(&[row, &[i]]));
        f4_e2m1_to_f64(code) * (scale.at(&join(&[row, &[i / block]])) / global)
    };
    let shape = out.output.layout().shape;
    for index in Indices::new(&shape) {
        let [row @ .., o] = &*index else { continue };
        let mut sum = 0.0;
        for i in 0..2 * call.axes.stored {
            sum += value(&call.x, &call.x_scale, x_global, row, i)
                * value(&call.weight, &call.weight_scale, weight_global, &[*o], i);
        }
        let bias = call.bias.map_or(0.0, |bias| bias.at(&[*o]));
        out.output.set(&index, activation(sum + bias));
    }
    Ok(())
}
