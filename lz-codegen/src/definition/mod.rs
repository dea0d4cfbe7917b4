//! Interchange with FlashInfer-Bench: `Definition` JSON in, `Definition` JSON out.
//!
//! [`import`] makes a schema in our own language of a `Definition`, [`export`] makes a `Definition` of a checked
//! operation for chosen sizes. What the language cannot say travels in the schema's section `definition`, so that
//! importing and exporting again gives the same `Definition`. Both dialects in use are read: the one that
//! FlashInfer-Bench documents, and the one that FlashInfer's own traces write (optional arguments, further dtypes,
//! results that share the name of an input, no reference).
//!
//! Nothing here does I/O, runs Python, or knows a particular operation.

mod constraint;
mod error;
mod export;
mod format;
mod import;
mod json;
mod naming;
pub(crate) mod python;
mod solve;
mod yaml;

pub use error::{ExportError, ImportError, Problem, ProblemKind};
pub use export::{Choice, export};
pub use format::{Argument, Axis, Definition, read, write};
pub use import::{Imported, import};
