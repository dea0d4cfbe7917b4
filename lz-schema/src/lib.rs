//! Reads operation schemas and the form of policies: YAML in, checked [`model`] or coded diagnostics out.
//!
//! This crate knows no tensors, no kernels and no code generation.

mod check;
pub mod definition;
pub mod diagnostics;
pub mod dtype;
pub mod editor;
pub mod expr;
pub mod layout;
pub mod model;
pub mod policy;
pub mod raw;
pub mod reasons;
pub mod set;
pub mod source;

pub use check::is_free_name;
pub use diagnostics::Report;
pub use dtype::DType;
pub use model::Operation;
pub use reasons::Reasons;
pub use set::{SchemaSet, load_one};
