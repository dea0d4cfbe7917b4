//! Why a platform or a device is not there, as data.

use std::fmt;
use std::path::PathBuf;

use lz_core::device::Platform;

/// Why a platform, or one device of it, is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbsenceReason {
    /// The driver's library could not be opened.
    LibraryMissing {
        /// What was to be opened.
        library: PathBuf,
        /// What the loader said.
        message: String,
    },
    /// The library lacks a function that is needed.
    SymbolMissing {
        /// The library.
        library: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// A function of the driver failed.
    CallFailed {
        /// The function.
        function: &'static str,
        /// Its status code.
        code: i32,
    },
    /// The kernel driver has left no trace in the file system.
    DriverMissing {
        /// What was to be read.
        path: PathBuf,
        /// What the operating system said.
        message: String,
    },
    /// The driver works and has no device.
    NoDevices,
    /// This build has no way to look; such devices come from specs that are handed in.
    NotProbed,
}

impl fmt::Display for AbsenceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LibraryMissing { library, message } => {
                write!(f, "the library {} cannot be opened: {message}", library.display())
            }
            Self::SymbolMissing { library, symbol } => {
                write!(f, "the library {} has no function `{symbol}`", library.display())
            }
            Self::CallFailed { function, code } => write!(f, "`{function}` failed with code {code}"),
            Self::DriverMissing { path, message } => {
                write!(f, "the kernel driver is not loaded: {}: {message}", path.display())
            }
            Self::NoDevices => f.write_str("the driver has no device"),
            Self::NotProbed => {
                f.write_str("there is no probe for this platform; hand in a device spec instead")
            }
        }
    }
}

impl std::error::Error for AbsenceReason {}

/// One thing that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// The platform.
    pub platform: Platform,
    /// Why.
    pub reason: AbsenceReason,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.platform, self.reason)
    }
}
