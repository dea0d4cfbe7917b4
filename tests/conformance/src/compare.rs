//! Comparison of results by a schema's `equivalence`.

pub use lz_core::compare::*;
