//! Rounding to small formats and back. `codes` has the formats, `groups` which elements share a scale.

mod codes;
mod dequantize;
mod quantize;
mod scales;

pub(crate) use dequantize::DequantizeRows;
pub(crate) use quantize::QuantizeRows;
