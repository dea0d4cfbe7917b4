//! What can be wrong with the bytes of a model, with the byte offset.

use std::fmt;

/// A problem in a buffer and its byte offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Bytes from the start of the file.
    pub offset: usize,
    /// The problem.
    pub problem: Problem,
}

/// Problems of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The buffer, or the enclosing message, ends inside this element.
    Truncated {
        /// The element being read.
        what: &'static str,
    },
    /// A varint is longer than ten bytes or holds more than 64 bits.
    VarintTooLong,
    /// A field number is zero or larger than protobuf allows.
    FieldNumber {
        /// The field number.
        number: u64,
    },
    /// An unsupported wire type: groups (3, 4) and the unassigned 6 and 7.
    WireType {
        /// The wire type.
        wire_type: u8,
    },
    /// A known field has a different wire type than declared.
    FieldType {
        /// The field.
        field: &'static str,
        /// The declared type.
        expected: &'static str,
    },
    /// A string is not UTF-8.
    Utf8 {
        /// The field.
        field: &'static str,
    },
    /// A required field is absent.
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field is ambiguous with another one.
    Ambiguous {
        /// The field.
        field: &'static str,
    },
    /// An unknown enum code.
    UnknownCode {
        /// The field.
        field: &'static str,
        /// The code.
        code: i64,
    },
    /// A dimension is negative or the element count overflows.
    Shape {
        /// The dimensions.
        dimensions: Vec<i64>,
    },
    /// The length of the data does not match the shape.
    Length {
        /// The data field.
        field: &'static str,
        /// Number of entries that the shape requires.
        expected: usize,
        /// Number of entries found.
        found: usize,
    },
    /// An entry of a typed data field does not fit the element type.
    OutOfRange {
        /// The data field.
        field: &'static str,
        /// The entry.
        value: i64,
    },
    /// The reference to external data is malformed.
    ExternalData {
        /// What is wrong.
        message: String,
    },
    /// Graphs inside attributes are nested too deeply.
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// A part occurs too often.
    TooMany {
        /// The parts.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { what } => write!(formatter, "the data ends inside {what}"),
            Self::VarintTooLong => write!(formatter, "a varint does not fit 64 bits"),
            Self::FieldNumber { number } => write!(formatter, "{number} is not a field number"),
            Self::WireType { wire_type } => write!(formatter, "wire type {wire_type} is not supported"),
            Self::FieldType { field, expected } => write!(formatter, "`{field}` is not {expected}"),
            Self::Utf8 { field } => write!(formatter, "`{field}` is not UTF-8"),
            Self::Missing { field } => write!(formatter, "`{field}` is missing"),
            Self::Ambiguous { field } => {
                write!(formatter, "`{field}` is given together with another data field")
            }
            Self::UnknownCode { field, code } => write!(formatter, "{code} is not a known `{field}`"),
            Self::Shape { dimensions } => write!(formatter, "{dimensions:?} is not a shape"),
            Self::Length { field, expected, found } => {
                write!(formatter, "`{field}` has {found} entries, but the shape requires {expected}")
            }
            Self::OutOfRange { field, value } => {
                write!(formatter, "{value} in `{field}` does not fit the element type")
            }
            Self::ExternalData { message } => write!(formatter, "external data: {message}"),
            Self::TooDeep { limit } => write!(formatter, "graphs are nested more than {limit} levels deep"),
            Self::TooMany { what, limit } => write!(formatter, "more than {limit} {what}"),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at byte {}: {}", self.offset, self.problem)
    }
}

impl std::error::Error for Malformed {}
