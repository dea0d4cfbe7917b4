//! The selection engine: it decides, checks and calls, and knows no particular operation.

pub mod device;
pub mod perfdb;

/// The expression language, at the path that generated code uses.
pub use lz_schema::expr;
