//! The element types of ONNX.

use lz_core::DType;

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

    /// The element type of our tensors; `None` for strings, complex numbers and formats that no operation takes.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            Self::Float => DType::F32,
            Self::Double => DType::F64,
            Self::Float16 => DType::F16,
            Self::Bfloat16 => DType::BF16,
            Self::Float8E4M3fn => DType::F8E4M3,
            Self::Float8E5M2 => DType::F8E5M2,
            Self::Float8E8M0 => DType::F8E8M0,
            Self::Int64 => DType::I64,
            Self::Int32 => DType::I32,
            Self::Int16 => DType::I16,
            Self::Int8 => DType::I8,
            Self::Uint64 => DType::U64,
            Self::Uint32 => DType::U32,
            Self::Uint16 => DType::U16,
            Self::Uint8 => DType::U8,
            Self::Bool => DType::Bool,
            _ => return None,
        })
    }

    /// Whether the type is a signed integer, whose typed entries are sign-extended.
    pub(super) fn is_signed_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64)
    }
}
