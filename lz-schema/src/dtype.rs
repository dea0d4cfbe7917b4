//! The element types: names and sizes. Arithmetic is elsewhere.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An element type.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum DType {
    #[serde(rename = "f64")]
    F64 = 1,
    #[serde(rename = "f32")]
    F32 = 2,
    #[serde(rename = "f16")]
    F16 = 3,
    #[serde(rename = "bf16")]
    BF16 = 4,
    #[serde(rename = "f8_e4m3")]
    F8E4M3 = 5,
    #[serde(rename = "f8_e5m2")]
    F8E5M2 = 6,
    #[serde(rename = "f8_e8m0")]
    F8E8M0 = 7,
    /// Two 4-bit floats in one byte, low nibble first.
    #[serde(rename = "f4_e2m1x2")]
    F4E2M1x2 = 8,
    #[serde(rename = "i64")]
    I64 = 9,
    #[serde(rename = "i32")]
    I32 = 10,
    #[serde(rename = "i16")]
    I16 = 11,
    #[serde(rename = "i8")]
    I8 = 12,
    #[serde(rename = "u64")]
    U64 = 13,
    #[serde(rename = "u32")]
    U32 = 14,
    #[serde(rename = "u16")]
    U16 = 15,
    #[serde(rename = "u8")]
    U8 = 16,
    #[serde(rename = "bool")]
    Bool = 17,
}

impl DType {
    /// All element types, in numerical order.
    pub const ALL: [DType; 17] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F8E8M0,
        DType::F4E2M1x2,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U64,
        DType::U32,
        DType::U16,
        DType::U8,
        DType::Bool,
    ];

    /// The short name that schemas use.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3 => "f8_e4m3",
            DType::F8E5M2 => "f8_e5m2",
            DType::F8E8M0 => "f8_e8m0",
            DType::F4E2M1x2 => "f4_e2m1x2",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::U64 => "u64",
            DType::U32 => "u32",
            DType::U16 => "u16",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }

    /// The long name, as in torch and numpy; used in messages.
    pub const fn long_name(self) -> &'static str {
        match self {
            DType::F64 => "float64",
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F8E4M3 => "float8_e4m3fn",
            DType::F8E5M2 => "float8_e5m2",
            DType::F8E8M0 => "float8_e8m0fnu",
            DType::F4E2M1x2 => "float4_e2m1fn_x2",
            DType::I64 => "int64",
            DType::I32 => "int32",
            DType::I16 => "int16",
            DType::I8 => "int8",
            DType::U64 => "uint64",
            DType::U32 => "uint32",
            DType::U16 => "uint16",
            DType::U8 => "uint8",
            DType::Bool => "bool",
        }
    }

    /// The type with this short or long name.
    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name || dtype.long_name() == name)
    }

    /// The type with this number (the `repr` of the enum).
    pub fn from_number(number: u8) -> Option<DType> {
        DType::ALL.get(usize::from(number).wrapping_sub(1)).copied()
    }

    /// Bytes of one stored element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            _ => 1,
        }
    }

    /// Whether values are floating point, so that they are compared with a tolerance.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F64
                | DType::F32
                | DType::F16
                | DType::BF16
                | DType::F8E4M3
                | DType::F8E5M2
                | DType::F8E8M0
                | DType::F4E2M1x2
        )
    }

    /// Whether values are integers.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, DType::Bool)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_one_to_one() {
        for (position, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(DType::parse(dtype.name()), Some(dtype));
            assert_eq!(DType::parse(dtype.long_name()), Some(dtype));
            assert_eq!(DType::from_number(dtype as u8), Some(dtype));
            assert_eq!(dtype as usize, position + 1);
        }
        assert_eq!(DType::from_number(0), None);
        assert_eq!(DType::from_number(18), None);
    }
}
