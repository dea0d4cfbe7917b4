//! Quantization and dequantization. `codes` has the formats, `scales` the computation and storage of scales, `encode` the rows.

mod codes;
mod dequantize;
mod encode;
mod quantize;
pub mod scales;

pub(crate) use codes::{Code, Signed, Unsigned};
pub(crate) use dequantize::DequantizeRows;
pub(crate) use encode::{EncodeRow, Encoder, ScaleLayout, ScaleSource};
pub(crate) use quantize::QuantizeRows;
pub(crate) use scales::{Rule, Scales, ScalesMut};
