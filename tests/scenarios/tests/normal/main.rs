//! Normal operations: days on which everything works, and the operator wants to know, to steer and to carry over.

mod blocks;
mod calls;
mod compiling;
mod devices;
mod explaining;
mod modes;
mod opening;
mod policy;
mod tables;
mod tuning;

/// The second process of a scenario.
const OTHER: &str = env!("CARGO_BIN_EXE_other-process");
