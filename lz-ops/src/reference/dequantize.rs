//! Reference of `dequantize`: every stored value times its scale. Each step is rounded to f32, as the schema
//! specifies.

use lz_core::KernelError;
use lz_core::element::f4_e2m1_to_f64;
use lz_core::tensor::Indices;

use crate::reference::groups::{Groups, packed_code, sign_extended};
use crate::{DequantizeCall, DequantizeFormat as Format, DequantizeGranularity, DequantizeOut};

/// Runs the operation.
pub fn run(call: &DequantizeCall<'_>, mut out: DequantizeOut<'_>) -> Result<(), KernelError> {
    let groups = match call.granularity {
        DequantizeGranularity::Tensor => Groups::Tensor,
        DequantizeGranularity::Channel | DequantizeGranularity::Head => Groups::Channel,
        DequantizeGranularity::Block => Groups::Block(call.block_size),
    };
    let global_scale = call.global_scale.map_or(1.0, |tensor| tensor.at(&[]) as f32);
    let shape = out.output.layout().shape;
    for element in Indices::new(&shape) {
        let group = groups.of(&element);
        let scale = call.scale.at(&group) as f32;
        let zero_point = call.zero_point.map_or(0, |tensor| tensor.int_at(&group));
        let integer = |code: i64| (code - zero_point) as f32 * scale;
        let quarter = || packed_code::<2>(&call.quantized, &element);
        let nibble = || packed_code::<4>(&call.quantized, &element);
        let value = match call.format {
            Format::Int8 | Format::Uint8 | Format::Int16 | Format::Uint16 => {
                integer(call.quantized.int_at(&element))
            }
            Format::Int4 => integer(sign_extended::<4>(nibble())),
            Format::Uint4 => integer(nibble().into()),
            Format::Int2 => integer(sign_extended::<2>(quarter())),
            Format::Uint2 => integer(quarter().into()),
            Format::Fp8E4m3 | Format::Fp8E5m2 => call.quantized.at(&element) as f32 * scale,
            Format::Mxfp4 => f4_e2m1_to_f64(nibble()) as f32 * scale,
            Format::Nvfp4 => f4_e2m1_to_f64(nibble()) as f32 * (scale / global_scale),
        };
        out.output.set(&element, f64::from(value));
    }
    Ok(())
}
