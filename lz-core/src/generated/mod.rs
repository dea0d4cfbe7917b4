//! Written by `cargo xtask codegen`; never edited.

#[rustfmt::skip]
pub mod contracts;
#[rustfmt::skip]
pub mod reasons;
