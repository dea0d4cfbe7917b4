//! The Rust half of the C++ binding. C++ users see `include/layerzero`; this is what stands behind its bridge.
//!
//! Nothing unwinds out of here: every function that can fail catches panics and returns a [`call::Failure`].

pub mod api;
pub mod call;
pub mod engine;
/// The bridge and one file an operation.
#[rustfmt::skip]
pub mod generated;
pub mod health;
pub mod inspect;
mod operation;
pub mod output;
pub mod perfdb;
