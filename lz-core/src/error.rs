//! The error type of the library; every variant carries its reasons as data.

use std::fmt;
use std::sync::OnceLock;

use crate::reason::{Reason, ReasonCode};

/// Why a call has no result.
#[derive(Debug, Clone)]
pub enum Error {
    /// The call is invalid.
    Validation {
        /// The operation.
        operation: String,
        /// All problems.
        reasons: Vec<Reason>,
    },
    /// No kernel can run it.
    NoKernel {
        /// The operation.
        operation: String,
        /// Each candidate with its reasons.
        candidates: Vec<(String, Vec<Reason>)>,
    },
    /// A lock names a kernel that cannot run it.
    Locked {
        /// The operation.
        operation: String,
        /// The locked kernel.
        kernel: String,
        /// Why it cannot run.
        reasons: Vec<Reason>,
    },
    /// No kernel is known to be safe inside a graph capture.
    CudaGraphUnsafe {
        /// The operation.
        operation: String,
        /// Each candidate with its reasons.
        candidates: Vec<(String, Vec<Reason>)>,
    },
    /// A kernel failed, and so did its fallbacks, or there are none.
    KernelExecution {
        /// The operation.
        operation: String,
        /// The kernel that failed first.
        kernel: String,
        /// Its reason, then those of the fallbacks.
        reasons: Vec<Reason>,
    },
    /// No operation or alias has this name.
    UnknownOperation {
        /// The name.
        operation: String,
        /// The reason, with the most similar name as `required`.
        reasons: Vec<Reason>,
    },
    /// A file, policy or descriptor is invalid; the text is the whole diagnostic.
    Configuration {
        /// What was read.
        subject: String,
        /// The rendered diagnostic.
        message: String,
        /// The reasons as data.
        reasons: Vec<Reason>,
    },
}

impl Error {
    /// The error for a name that no operation or alias has; `known` are the names that are suggested from.
    pub fn unknown_operation<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Error {
        let near = lz_schema::diagnostics::nearest(name, known);
        let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let mut reason = Reason::new(ReasonCode::OperationUnknown)
            .message(format!("unknown operation `{name}`{hint}"))
            .found(name.to_owned());
        if let Some(near) = near {
            reason = reason.required(near.to_owned());
        }
        Error::UnknownOperation { operation: name.to_owned(), reasons: vec![reason] }
    }

    /// All reasons, flat.
    pub fn reasons(&self) -> Vec<&Reason> {
        match self {
            Error::Validation { reasons, .. }
            | Error::Locked { reasons, .. }
            | Error::KernelExecution { reasons, .. }
            | Error::UnknownOperation { reasons, .. }
            | Error::Configuration { reasons, .. } => reasons.iter().collect(),
            Error::NoKernel { candidates, .. } if candidates.is_empty() => vec![no_kernel()],
            Error::NoKernel { candidates, .. } | Error::CudaGraphUnsafe { candidates, .. } => {
                candidates.iter().flat_map(|(_, reasons)| reasons).collect()
            }
        }
    }

    /// Whether any reason has this code.
    pub fn has(&self, code: ReasonCode) -> bool {
        self.reasons().iter().any(|reason| reason.code == code)
    }
}

/// The reason of an operation without candidates.
fn no_kernel() -> &'static Reason {
    static REASON: OnceLock<Reason> = OnceLock::new();
    REASON.get_or_init(|| {
        Reason::new(ReasonCode::NoKernel).message("no kernel is registered for the operation")
    })
}

fn list(f: &mut fmt::Formatter<'_>, reasons: &[Reason], indent: &str) -> fmt::Result {
    let width = reasons.iter().map(|reason| reason.code.as_str().len() + 2).max().unwrap_or(0);
    for reason in reasons {
        let code = format!("[{}]", reason.code);
        write!(f, "\n{indent}{code:<width$} {}", reason.sentence())?;
    }
    Ok(())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Validation { operation, reasons } => {
                let count = reasons.len();
                write!(f, "{operation}: {count} problem{}", if count == 1 { "" } else { "s" })?;
                list(f, reasons, "  ")
            }
            Error::NoKernel { operation, candidates } | Error::CudaGraphUnsafe { operation, candidates } => {
                if matches!(self, Error::NoKernel { .. }) {
                    write!(f, "{operation}: no kernel can run this call")?;
                } else {
                    write!(f, "{operation}: no kernel is known to be safe inside a CUDA graph capture")?;
                }
                if candidates.is_empty() {
                    write!(f, "; none is registered for the operation")?;
                }
                for (kernel, reasons) in candidates {
                    write!(f, "\n  {kernel}")?;
                    list(f, reasons, "    ")?;
                }
                Ok(())
            }
            Error::Locked { operation, kernel, reasons } => {
                write!(
                    f,
                    "{operation}: locked to {kernel}, which cannot run this call; unlock it or change the call"
                )?;
                list(f, reasons, "  ")
            }
            Error::KernelExecution { operation, kernel, reasons } => {
                write!(f, "{operation}: {kernel} failed")?;
                list(f, reasons, "  ")
            }
            Error::UnknownOperation { operation, reasons } => match reasons.first() {
                Some(reason) => f.write_str(&reason.sentence()),
                None => write!(f, "unknown operation `{operation}`"),
            },
            Error::Configuration { subject, message, .. } => write!(f, "{subject}: {message}"),
        }
    }
}

impl std::error::Error for Error {}
