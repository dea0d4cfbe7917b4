//! Parses and validates operation schemas and policy files: YAML in, [`model`] or diagnostics with codes out.
//!
//! This crate must not depend on tensors, kernels or code generation.

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
mod specialize;
pub mod template;

pub use check::is_free_name;
pub use diagnostics::Report;
pub use dtype::DType;
pub use model::Operation;
pub use reasons::Reasons;
pub use set::{SchemaSet, load_one, load_one_of};
