//! Interchange with FlashInfer-Bench: reads and writes its `Definition` JSON.
//!
//! [`import`] converts a `Definition` to a schema; [`export`] converts a checked operation to a `Definition`
//! with chosen sizes, and [`export_workload`] a call as a workload of FlashInfer-Trace. Fields that the schema language cannot express are stored in the section `definition` of the schema, so that
//! a round trip of import and export returns the same `Definition`. Both dialects in use are read: the one that
//! FlashInfer-Bench documents, and the one that FlashInfer's own traces write (optional arguments, further dtypes,
//! results that share the name of an input, no reference).
//!
//! Nothing here does I/O, runs Python, or depends on tensors, kernels or a particular operation.

mod constraint;
mod error;
mod export;
mod format;
mod import;
mod json;
mod naming;
mod solve;
mod yaml;

pub use error::{ExportError, ImportError, Problem, ProblemKind};
pub use export::{CallArguments, ExportOptions, ExportedWorkload, export, export_workload};
pub use format::{Argument, Axis, Definition, read, write};
pub use import::{ImportedSchema, import};
