//! Quantization and dequantization. `codes` has the formats, `scales` the computation and storage of scales, `encode` the rows,
//! `quantized_rows` rows that other kernels decode part by part.

mod codes;
mod dequantize;
mod encode;
mod quantize;
mod quantized_rows;
pub mod scales;

pub(crate) use codes::{Code, Signed, Unsigned};
pub(crate) use dequantize::DequantizeRows;
pub(crate) use encode::{EncodeRow, Encoder, ScaleLayout, ScaleSource};
pub(crate) use quantize::QuantizeRows;
pub(crate) use quantized_rows::{COLUMNS, Grouping, LEFT_ROWS, QuantizedRows, Stored, products};
pub(crate) use scales::{Rule, Scales, ScalesMut};
