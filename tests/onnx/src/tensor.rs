//! ONNX `TensorProto`: element type, shape and data in one uniform form, independent of the field that held
//! them.
//!
//! Values are the bytes of a contiguous little-endian array; types below eight bits stay packed, lowest bits
//! first. Nothing is converted, so that tests can require bit-exact equality.

use crate::error::{Malformed, Problem};
use crate::number;
use crate::wire::{Chunk, Field};
use half::{bf16, f16};

/// The element types of `TensorProto.DataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the type of ONNX that bears its name")]
pub enum DataType {
    Float,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Int32,
    Int64,
    String,
    Bool,
    Float16,
    Double,
    Uint32,
    Uint64,
    Complex64,
    Complex128,
    Bfloat16,
    Float8E4M3fn,
    Float8E4M3fnuz,
    Float8E5M2,
    Float8E5M2fnuz,
    Uint4,
    Int4,
    Float4E2M1,
    Float8E8M0,
    Uint2,
    Int2,
}

/// A tensor with its name in the file or graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// The name; empty if the message has none.
    pub name: String,
    /// The element type.
    pub data_type: DataType,
    /// The dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub data: TensorData,
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorData {
    /// Numbers and bools, in memory representation.
    Bytes(Vec<u8>),
    /// The elements of a string tensor, not necessarily UTF-8.
    Strings(Vec<Vec<u8>>),
}

impl DataType {
    /// Types by code; code 0 is "undefined".
    const BY_CODE: [Option<Self>; 27] = {
        use DataType::*;
        [
            None,
            Some(Float),
            Some(Uint8),
            Some(Int8),
            Some(Uint16),
            Some(Int16),
            Some(Int32),
            Some(Int64),
            Some(String),
            Some(Bool),
            Some(Float16),
            Some(Double),
            Some(Uint32),
            Some(Uint64),
            Some(Complex64),
            Some(Complex128),
            Some(Bfloat16),
            Some(Float8E4M3fn),
            Some(Float8E4M3fnuz),
            Some(Float8E5M2),
            Some(Float8E5M2fnuz),
            Some(Uint4),
            Some(Int4),
            Some(Float4E2M1),
            Some(Float8E8M0),
            Some(Uint2),
            Some(Int2),
        ]
    };

    /// The type of an ONNX code.
    pub fn from_code(code: i64) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::BY_CODE.get(index).copied().flatten())
    }

    /// Bits per element; 0 for strings.
    pub fn bits(self) -> usize {
        match self {
            Self::String => 0,
            Self::Uint2 | Self::Int2 => 2,
            Self::Uint4 | Self::Int4 | Self::Float4E2M1 => 4,
            Self::Uint8 | Self::Int8 | Self::Bool => 8,
            Self::Float8E4M3fn | Self::Float8E4M3fnuz | Self::Float8E5M2 => 8,
            Self::Float8E5M2fnuz | Self::Float8E8M0 => 8,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 16,
            Self::Float | Self::Int32 | Self::Uint32 => 32,
            Self::Double | Self::Int64 | Self::Uint64 | Self::Complex64 => 64,
            Self::Complex128 => 128,
        }
    }

    /// Whether the type is a signed integer, whose typed entries are sign-extended.
    fn is_signed_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64)
    }
}

/// The data fields of the message, collected before the element type is known: protobuf does not fix the
/// field order.
#[derive(Default)]
struct Collected<'a> {
    raw: Option<Chunk<'a>>,
    floats: Vec<f32>,
    integers32: Vec<i64>,
    integers64: Vec<i64>,
    unsigned64: Vec<i64>,
    doubles: Vec<f64>,
    strings: Vec<Vec<u8>>,
}

impl Collected<'_> {
    /// The only data field that is set; `raw_data` counts as set even if empty.
    fn only_field(&self) -> Result<Option<&'static str>, Problem> {
        let candidates = [
            ("raw_data", self.raw.is_some()),
            ("float_data", !self.floats.is_empty()),
            ("int32_data", !self.integers32.is_empty()),
            ("int64_data", !self.integers64.is_empty()),
            ("uint64_data", !self.unsigned64.is_empty()),
            ("double_data", !self.doubles.is_empty()),
            ("string_data", !self.strings.is_empty()),
        ];
        let mut filled = candidates.iter().filter(|(_, present)| *present).map(|(field, _)| *field);
        let first = filled.next();
        match filled.next() {
            Some(field) => Err(Problem::Ambiguous { field }),
            None => Ok(first),
        }
    }
}

/// Reads a `TensorProto`.
pub fn read_tensor(message: Chunk<'_>) -> Result<NamedTensor, Malformed> {
    let mut name = String::new();
    let mut code = None;
    let mut dimensions = Vec::new();
    let mut collected = Collected::default();
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => field.integers_into("dims", &mut dimensions)?,
            2 => code = Some((field.integer("data_type")?, field.offset)),
            8 => name = field.text("name")?,
            13 => return Err(Malformed { offset: field.offset, problem: Problem::ExternalData }),
            14 if field.integer("data_location")? != 0 => {
                return Err(Malformed { offset: field.offset, problem: Problem::ExternalData });
            }
            _ => collected.take(&field)?,
        }
    }
    let here = |problem| Malformed { offset: message.offset, problem };
    let (code, code_offset) = code.ok_or_else(|| here(Problem::Missing { field: "data_type" }))?;
    let data_type = DataType::from_code(code).ok_or(Malformed {
        offset: code_offset,
        problem: Problem::UnknownCode { field: "data_type", code },
    })?;
    let bad_shape = || here(Problem::Shape { dimensions: dimensions.clone() });
    let shape: Vec<usize> = dimensions
        .iter()
        .map(|&size| usize::try_from(size))
        .collect::<Result<_, _>>()
        .map_err(|_| bad_shape())?;
    // Limiting the bits avoids overflow in later products of counts and widths.
    let elements = shape
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size))
        .filter(|elements| elements.checked_mul(128).is_some())
        .ok_or_else(bad_shape)?;
    let data = collected.into_data(data_type, elements).map_err(here)?;
    Ok(NamedTensor { name, data_type, shape, data })
}

impl<'a> Collected<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), Malformed> {
        match field.number {
            4 => field.floats_into("float_data", &mut self.floats),
            5 => field.integers_into("int32_data", &mut self.integers32),
            6 => field.chunk("string_data").map(|chunk| self.strings.push(chunk.bytes.to_vec())),
            7 => field.integers_into("int64_data", &mut self.integers64),
            9 => field.chunk("raw_data").map(|chunk| self.raw = Some(chunk)),
            10 => field.doubles_into("double_data", &mut self.doubles),
            11 => field.integers_into("uint64_data", &mut self.unsigned64),
            // Documentation, segments and fields of later versions do not affect the values.
            _ => Ok(()),
        }
    }

    fn into_data(self, data_type: DataType, elements: usize) -> Result<TensorData, Problem> {
        use DataType as T;
        let filled = self.only_field()?;
        let expected_field = match data_type {
            T::Float | T::Complex64 => "float_data",
            T::Double | T::Complex128 => "double_data",
            T::Int64 => "int64_data",
            T::Uint32 | T::Uint64 => "uint64_data",
            T::String => "string_data",
            _ => "int32_data",
        };
        let raw_allowed = data_type != T::String;
        match filled {
            Some("raw_data") if raw_allowed => {}
            Some(field) if field != expected_field => {
                return Err(Problem::FieldType { field, expected: expected_field });
            }
            _ => {}
        }
        if data_type == T::String {
            let found = self.strings.len();
            return if found == elements {
                Ok(TensorData::Strings(self.strings))
            } else {
                Err(Problem::Length { field: "string_data", expected: elements, found })
            };
        }
        let expected_bytes = (elements * data_type.bits()).div_ceil(8);
        if let Some(raw) = self.raw {
            let found = raw.bytes.len();
            return if found == expected_bytes {
                Ok(TensorData::Bytes(raw.bytes.to_vec()))
            } else {
                Err(Problem::Length { field: "raw_data", expected: expected_bytes, found })
            };
        }
        let bytes = match expected_field {
            "float_data" => self.floats.iter().flat_map(|value| value.to_le_bytes()).collect(),
            "double_data" => self.doubles.iter().flat_map(|value| value.to_le_bytes()).collect(),
            "int64_data" => self.integers64.iter().flat_map(|value| value.to_le_bytes()).collect(),
            "uint64_data" => narrow("uint64_data", &self.unsigned64, data_type)?,
            _ => narrow("int32_data", &self.integers32, data_type)?,
        };
        if bytes.len() != expected_bytes {
            let (expected, found) = (expected_bytes, bytes.len());
            return Err(Problem::Length { field: expected_field, expected, found });
        }
        Ok(TensorData::Bytes(bytes))
    }
}

/// Truncates integers from a wide field to the width of the element type; sub-byte types have one packed byte
/// per entry.
fn narrow(field: &'static str, values: &[i64], data_type: DataType) -> Result<Vec<u8>, Problem> {
    let width = data_type.bits().max(8);
    let mut bytes = Vec::with_capacity(values.len() * width / 8);
    for &value in values {
        let fits = match width {
            64 => true,
            _ if data_type.is_signed_integer() => {
                let limit = 1i64 << (width - 1);
                (-limit..limit).contains(&value)
            }
            _ => (0..1i64 << width).contains(&value),
        };
        if !fits {
            return Err(Problem::OutOfRange { field, value });
        }
        bytes.extend(value.to_le_bytes().iter().take(width / 8));
    }
    Ok(bytes)
}

impl NamedTensor {
    /// Number of elements of the shape.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes of a numeric tensor.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.data {
            TensorData::Bytes(bytes) => Some(bytes),
            TensorData::Strings(_) => None,
        }
    }

    /// The elements as `f64`: exact for types of up to 53 bits of precision; `None` for strings and complex
    /// numbers.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
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

    /// The elements of a type below eight bits, one per byte, in the lowest bits; `None` for other types.
    pub fn unpacked(&self) -> Option<Vec<u8>> {
        let (bits, bytes) = (self.data_type.bits(), self.bytes()?);
        if !matches!(bits, 2 | 4) {
            return None;
        }
        let mask = (1u8 << bits) - 1;
        let elements =
            bytes.iter().flat_map(|byte| (0..8).step_by(bits).map(move |shift| (byte >> shift) & mask));
        Some(elements.take(self.element_count()).collect())
    }
}

fn wide<const N: usize, T>(bytes: &[u8], read: fn([u8; N]) -> T, widen: fn(T) -> f64) -> Vec<f64> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| widen(read(chunk))).collect()
}

fn sign_extended(bits: u8, width: u32) -> f64 {
    let shift = 8 - width;
    f64::from(((bits << shift) as i8) >> shift)
}
