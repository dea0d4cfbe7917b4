//! placeholder
pub mod expr;
