//! Errors of reading the suite's files: always with the file, and with a byte offset where applicable.

use std::fmt;
use std::path::PathBuf;

pub use lz_graph::import::onnx::problem::{Malformed, Problem};

/// Why a file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file or folder could not be opened or listed.
    Io {
        /// The file or folder.
        file: PathBuf,
        /// The system error.
        source: std::io::Error,
    },
    /// The file is malformed.
    Malformed {
        /// The file.
        file: PathBuf,
        /// Location and problem.
        malformed: Malformed,
    },
    /// Each file is well formed, but they do not match.
    Inconsistent {
        /// The folder of the case.
        directory: PathBuf,
        /// The mismatch.
        message: String,
    },
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

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Malformed { malformed, .. } => Some(malformed),
            Self::Inconsistent { .. } => None,
        }
    }
}
