//! Why a platform or a device is not there, as data.

use std::fmt;
use std::path::PathBuf;

use lz_core::device::Platform;

/// Why a platform, or one of its devices, is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbsenceReason {
    /// The driver's library could not be loaded.
    LibraryMissing {
        /// The library.
        library: PathBuf,
        /// The loader's error.
        message: String,
    },
    /// The library lacks a required function.
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
    /// The kernel driver is not present in the file system.
    DriverMissing {
        /// The file that was expected.
        path: PathBuf,
        /// The system error.
        message: String,
    },
    /// The driver works but has no device.
    NoDevices,
    /// This build cannot probe the platform; its devices can be specified explicitly.
    NotProbed,
}

impl fmt::Display for AbsenceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LibraryMissing { library, message } => {
                write!(f, "cannot load library {}: {message}", library.display())
            }
            Self::SymbolMissing { library, symbol } => {
                write!(f, "the library {} has no function `{symbol}`", library.display())
            }
            Self::CallFailed { function, code } => write!(f, "`{function}` failed with code {code}"),
            Self::DriverMissing { path, message } => {
                write!(f, "the kernel driver is not loaded: {}: {message}", path.display())
            }
            Self::NoDevices => f.write_str("the driver has no device"),
            Self::NotProbed => f.write_str("this platform cannot be probed; pass a device spec instead"),
        }
    }
}

impl std::error::Error for AbsenceReason {}

/// An absent platform or device.
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
