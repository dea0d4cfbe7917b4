//! ONNX tensors as numbers, for comparison and printing.

use crate::number;
use half::{bf16, f16};
use lz_graph::import::onnx::{tensor, wire::Chunk};

pub use lz_graph::import::onnx::tensor::DataType;

use crate::error::Malformed;

/// A tensor that owns its elements.
pub type NamedTensor = tensor::NamedTensor<'static>;

/// The elements of a tensor.
pub type TensorData = tensor::TensorData<'static>;

/// Reads a `TensorProto`.
pub fn read_tensor(message: Chunk<'_>) -> Result<NamedTensor, Malformed> {
    tensor::read_tensor(message).map(tensor::NamedTensor::into_owned)
}

/// The elements of a tensor as numbers.
pub trait ToF64 {
    /// The elements as `f64`: exact for types of up to 53 bits of precision; `None` for strings, complex numbers and data in
    /// other files.
    fn to_f64(&self) -> Option<Vec<f64>>;
}

impl ToF64 for tensor::NamedTensor<'_> {
    fn to_f64(&self) -> Option<Vec<f64>> {
        use DataType as T;
        let bytes = self.bytes()?;
        Some(match self.data_type {
            T::Float => wide(bytes, f32::from_le_bytes, f64::from),
            T::Double => wide(bytes, f64::from_le_bytes, |value| value),
            T::Float16 => wide(bytes, f16::from_le_bytes, f64::from),
            T::Bfloat16 => wide(bytes, bf16::from_le_bytes, f64::from),
            T::Uint8 | T::Bool => wide(bytes, u8::from_le_bytes, f64::from),
            T::Int8 => wide(bytes, i8::from_le_bytes, f64::from),
            T::Uint16 => wide(bytes, u16::from_le_bytes, f64::from),
            T::Int16 => wide(bytes, i16::from_le_bytes, f64::from),
            T::Uint32 => wide(bytes, u32::from_le_bytes, f64::from),
            T::Int32 => wide(bytes, i32::from_le_bytes, f64::from),
            T::Uint64 => wide(bytes, u64::from_le_bytes, |value| value as f64),
            T::Int64 => wide(bytes, i64::from_le_bytes, |value| value as f64),
            T::Float8E4M3fn => wide(bytes, u8::from_le_bytes, |bits| number::E4M3FN.decode(bits)),
            T::Float8E4M3fnuz => wide(bytes, u8::from_le_bytes, |bits| number::E4M3FNUZ.decode(bits)),
            T::Float8E5M2 => wide(bytes, u8::from_le_bytes, |bits| number::E5M2.decode(bits)),
            T::Float8E5M2fnuz => wide(bytes, u8::from_le_bytes, |bits| number::E5M2FNUZ.decode(bits)),
            T::Float8E8M0 => wide(bytes, u8::from_le_bytes, number::decode_e8m0),
            T::Float4E2M1 => self.unpacked()?.into_iter().map(|bits| number::E2M1.decode(bits)).collect(),
            T::Uint4 | T::Uint2 => self.unpacked()?.into_iter().map(f64::from).collect(),
            T::Int4 => self.unpacked()?.into_iter().map(|bits| sign_extended(bits, 4)).collect(),
            T::Int2 => self.unpacked()?.into_iter().map(|bits| sign_extended(bits, 2)).collect(),
            T::String | T::Complex64 | T::Complex128 => return None,
        })
    }
}

fn wide<const N: usize, T>(bytes: &[u8], read: fn([u8; N]) -> T, widen: fn(T) -> f64) -> Vec<f64> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| widen(read(chunk))).collect()
}

fn sign_extended(bits: u8, width: u32) -> f64 {
    let shift = 8 - width;
    f64::from(((bits << shift) as i8) >> shift)
}
