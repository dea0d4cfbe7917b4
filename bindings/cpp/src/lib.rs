//! The Rust side of the C++ binding. The C++ API is in `include/layerzero`.
//!
//! Panics do not unwind into C++: every function that can fail catches panics and returns a [`call::Failure`].

pub mod api;
pub mod block;
pub mod call;
pub mod data;
pub mod engine;
/// The bridge and one file per operation.
#[rustfmt::skip]
pub mod generated;
pub mod health;
pub mod inspect;
pub mod logs;
pub mod model;
mod operation;
pub mod output;
pub mod perfdb;
pub mod reload;
pub mod serve;
pub mod telemetry;
pub mod text;
