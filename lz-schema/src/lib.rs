//! Reads operation schemas: YAML in, checked [`model`] or coded diagnostics out.
//!
//! This crate knows no tensors, no kernels and no code generation.

pub mod dtype;
pub mod expr;

pub use dtype::DType;
