//! ONNX `TensorProto`: element type, shape and data in one uniform form, independent of the field that held them.
//!
//! Values are the bytes of a contiguous little-endian array; types below eight bits stay packed, lowest bits first. Nothing is
//! converted, so that tests can require bit-exact equality. Raw bytes stay borrowed from the file, and data in other files is
//! only named.

use std::borrow::Cow;

pub use super::data_type::DataType;
use super::problem::{Malformed, Problem};
use super::wire::{Chunk, Field};

/// A tensor with its name in the file or graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor<'a> {
    /// The name; empty if the message has none.
    pub name: String,
    /// The element type.
    pub data_type: DataType,
    /// The dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub data: TensorData<'a>,
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorData<'a> {
    /// Numbers and bools, in memory representation.
    Bytes(Cow<'a, [u8]>),
    /// The elements of a string tensor, not necessarily UTF-8.
    Strings(Vec<Vec<u8>>),
    /// Numbers and bools in another file.
    External(ExternalData),
}

/// Where the elements of a tensor are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalData {
    /// The file, relative to the model's folder. Not validated.
    pub location: String,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; the shape determines it if absent.
    pub length: Option<u64>,
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
pub fn read_tensor(message: Chunk<'_>) -> Result<NamedTensor<'_>, Malformed> {
    let mut name = String::new();
    let mut code = None;
    let mut dimensions = Vec::new();
    let mut collected = Collected::default();
    let mut external = None;
    let mut is_external = false;
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => field.integers_into("dims", &mut dimensions)?,
            2 => code = Some((field.integer("data_type")?, field.offset)),
            8 => name = field.text("name")?,
            13 => read_external(field.chunk("external_data")?, external.get_or_insert_default())?,
            14 => is_external = field.integer("data_location")? == 1,
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
    let data = match (is_external, external) {
        (false, None) => collected.into_data(data_type, elements).map_err(here)?,
        (true, Some(external)) if collected.only_field().map_err(here)?.is_none() => {
            TensorData::External(external)
        }
        _ => {
            let message = "`external_data` and `data_location` disagree with the data fields".to_owned();
            return Err(here(Problem::ExternalData { message }));
        }
    };
    Ok(NamedTensor { name, data_type, shape, data })
}

/// Reads one `StringStringEntryProto` of `external_data`.
fn read_external(message: Chunk<'_>, external: &mut ExternalData) -> Result<(), Malformed> {
    let (mut key, mut value) = (String::new(), String::new());
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => key = field.text("key")?,
            2 => value = field.text("value")?,
            _ => {}
        }
    }
    let start = message.offset;
    let number = || {
        value.parse::<u64>().map_err(|_| {
            let message = format!("`{key}` is `{value}`, expected a number of bytes");
            Malformed { offset: start, problem: Problem::ExternalData { message } }
        })
    };
    match key.as_str() {
        "location" => external.location = value,
        "offset" => external.offset = number()?,
        "length" => external.length = Some(number()?),
        // A checksum is optional, and later versions may add keys.
        _ => {}
    }
    Ok(())
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

    fn into_data(self, data_type: DataType, elements: usize) -> Result<TensorData<'a>, Problem> {
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
                Ok(TensorData::Bytes(Cow::Borrowed(raw.bytes)))
            } else {
                Err(Problem::Length { field: "raw_data", expected: expected_bytes, found })
            };
        }
        let bytes: Vec<u8> = match expected_field {
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
        Ok(TensorData::Bytes(Cow::Owned(bytes)))
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

impl NamedTensor<'_> {
    /// Number of elements of the shape.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of bytes that the shape and the element type require; 0 for strings.
    pub fn byte_count(&self) -> usize {
        (self.element_count() * self.data_type.bits()).div_ceil(8)
    }

    /// The bytes of a numeric tensor, unless they are in another file.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.data {
            TensorData::Bytes(bytes) => Some(bytes),
            TensorData::Strings(_) | TensorData::External(_) => None,
        }
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

    /// The same, independent of the file's memory.
    pub fn into_owned(self) -> NamedTensor<'static> {
        let data = match self.data {
            TensorData::Bytes(bytes) => TensorData::Bytes(Cow::Owned(bytes.into_owned())),
            TensorData::Strings(strings) => TensorData::Strings(strings),
            TensorData::External(external) => TensorData::External(external),
        };
        NamedTensor { name: self.name, data_type: self.data_type, shape: self.shape, data }
    }
}
