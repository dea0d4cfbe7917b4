//! Quantization and dequantization. `codes` has the formats, `scales` the computation and storage of scales.

mod codes;
mod dequantize;
mod quantize;
pub mod scales;

pub(crate) use dequantize::DequantizeRows;
pub(crate) use quantize::QuantizeRows;
