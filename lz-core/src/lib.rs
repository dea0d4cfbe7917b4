//! What kernel authors and generated code need: tensors, elements, devices as data, the context of a call, reasons, errors,
//! arguments, kernel and operation traits, kernel specs, plans, validation, and the contracts of descriptors.
//!
//! Never depends on the engine, on SQLite or on file watching, and starts no threads. Detection of devices is `lz-device`, selection is
//! `lz-engine`.

#[cfg(target_os = "macos")]
compile_error!(
    "LayerZero does not support macOS: it builds on Linux (x86-64, aarch64). Build it in a Linux container or virtual machine."
);
#[cfg(target_os = "windows")]
compile_error!(
    "LayerZero does not support Windows: it builds on Linux (x86-64, aarch64). Build it in WSL 2 or a Linux container."
);

pub mod args;
pub mod built_in;
pub mod call;
pub mod check;
pub mod context;
pub mod contract;
pub mod descriptor;
pub mod device;
pub mod dispatch;
pub mod dynamic;
pub mod element;
pub mod equivalence;
pub mod error;
pub mod expression_names;
pub mod expression_spelling;
pub mod failure;
pub mod fork;
mod generated;
pub mod judgment;
pub mod kernel;
pub mod mode;
pub mod operation;
pub mod plan;
pub mod reason;
mod reason_codes;
pub mod recorded;
pub mod scope_stack;
pub mod score_mod;
pub mod spec;
pub mod statistic;
pub mod synthetic;
pub mod tensor;

pub use lz_schema::DType;
pub use lz_schema::expr;

pub use args::{Arg, Handle, OutArg};
pub use context::Context;
pub use dispatch::Dispatch;
pub use error::Error;
pub use failure::{Cause, Severity};
pub use generated::contracts;
pub use kernel::run::{self, Run};
pub use kernel::{
    CallRecorder, FusedKernel, FusedPart, HandlePredicate, Kernel, KernelEntry, KernelError, Prepare,
    PreparedInput, RecordingKernel, Specialized,
};
pub use operation::OperationInfo;
pub use plan::Plan;
pub use reason::{Reason, ReasonCode};
pub use spec::KernelSpec;
pub use tensor::{Tensor, TensorMut, TensorView};
