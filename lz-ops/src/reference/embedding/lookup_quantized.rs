//! Reference of `embedding.lookup.quantized`: every value of the row times its scale, each step rounded to f32.

use lz_core::KernelError;
use lz_core::element::f4_e2m1_to_f64;
use lz_core::tensor::Indices;

use crate::reference::groups::{Groups, packed_code, sign_extended};
use crate::{
    EmbeddingLookupQuantizedCall, EmbeddingLookupQuantizedFormat as Format,
    EmbeddingLookupQuantizedGranularity as Granularity, EmbeddingLookupQuantizedOut,
};

/// Runs the operation.
pub fn run(
    call: &EmbeddingLookupQuantizedCall<'_>,
    mut out: EmbeddingLookupQuantizedOut<'_>,
) -> Result<(), KernelError> {
    let groups = match call.granularity {
        Granularity::Channel => Groups::Channel,
        Granularity::Block => Groups::Block(call.block_size),
    };
    let shape = out.output.layout().shape;
    for index in Indices::new(&shape) {
        let [token @ .., i] = &*index else { continue };
        let element = [call.ids.int_at(token), *i];
        let group = groups.of(&element);
        let scale = call.scale.at(&group) as f32;
        let zero_point = call.zero_point.map_or(0, |tensor| tensor.int_at(&group));
        let integer = |code: i64| (code - zero_point) as f32 * scale;
        let nibble = || packed_code::<4>(&call.table, &element);
        let value = match call.format {
            Format::Int8 | Format::Uint8 => integer(call.table.int_at(&element)),
            Format::Int4 => integer(sign_extended::<4>(nibble())),
            Format::Uint4 => integer(nibble().into()),
            Format::Fp8E4m3 => call.table.at(&element) as f32 * scale,
            Format::Mxfp4 => f4_e2m1_to_f64(nibble()) as f32 * scale,
        };
        out.output.set(&index, f64::from(value));
    }
    Ok(())
}
