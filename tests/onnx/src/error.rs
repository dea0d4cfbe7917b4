//! What can go wrong while a file of the suite is read: always a file, and an offset where a byte is to blame.

use std::fmt;
use std::path::PathBuf;

/// Why a file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file or folder could not be opened or listed.
    Io {
        /// The file or folder.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes of the file are not what they should be.
    Malformed {
        /// The file.
        file: PathBuf,
        /// Where and what.
        malformed: Malformed,
    },
    /// Each file is well formed, but they do not belong together.
    Inconsistent {
        /// The folder of the case.
        directory: PathBuf,
        /// What does not fit.
        message: String,
    },
}

/// A problem in a buffer and the byte at which it was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Bytes from the start of the file.
    pub offset: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The buffer, or the message around the field, ends inside the named thing.
    Truncated {
        /// What was being read.
        what: &'static str,
    },
    /// A varint is longer than ten bytes or holds more than 64 bits.
    VarintTooLong,
    /// A field number is zero or larger than protobuf allows.
    FieldNumber {
        /// The number as it stands in the buffer.
        number: u64,
    },
    /// A wire type that this reader does not take: groups (3, 4) and the unassigned 6 and 7.
    WireType {
        /// The wire type.
        wire_type: u8,
    },
    /// A known field has another wire type than its declaration.
    FieldType {
        /// The field.
        field: &'static str,
        /// What the declaration asks for.
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
    /// A field is given that leaves two readings open.
    Ambiguous {
        /// The field.
        field: &'static str,
    },
    /// A number names nothing that this reader knows.
    UnknownCode {
        /// The field.
        field: &'static str,
        /// The number.
        code: i64,
    },
    /// A dimension is negative or the element count does not fit.
    Shape {
        /// The dimensions as they stand in the buffer.
        dimensions: Vec<i64>,
    },
    /// The data has another length than the shape asks for.
    Length {
        /// The field that holds the data.
        field: &'static str,
        /// How many entries the shape asks for.
        expected: usize,
        /// How many are there.
        found: usize,
    },
    /// An entry of a typed data field does not fit the element type.
    OutOfRange {
        /// The field that holds the data.
        field: &'static str,
        /// The entry.
        value: i64,
    },
    /// The tensor's bytes lie in another file, which the suite never does.
    ExternalData,
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
            Self::Ambiguous { field } => write!(formatter, "`{field}` is given beside another of its kind"),
            Self::UnknownCode { field, code } => write!(formatter, "{code} is not a known `{field}`"),
            Self::Shape { dimensions } => write!(formatter, "{dimensions:?} is not a shape"),
            Self::Length { field, expected, found } => {
                write!(formatter, "`{field}` has {found} entries where the shape asks for {expected}")
            }
            Self::OutOfRange { field, value } => {
                write!(formatter, "{value} in `{field}` does not fit the element type")
            }
            Self::ExternalData => write!(formatter, "the data lies in another file"),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at byte {}: {}", self.offset, self.problem)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, source } => write!(formatter, "{}: {source}", file.display()),
            Self::Malformed { file, malformed } => write!(formatter, "{}: {malformed}", file.display()),
            Self::Inconsistent { directory, message } => {
                write!(formatter, "{}: {message}", directory.display())
            }
        }
    }
}

impl std::error::Error for Malformed {}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Malformed { malformed, .. } => Some(malformed),
            Self::Inconsistent { .. } => None,
        }
    }
}
