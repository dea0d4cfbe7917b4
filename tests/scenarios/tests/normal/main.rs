//! Normal operations: selection, explanation, configuration, tuning and deployment without failures.

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

/// Path of the second process.
const OTHER_PROCESS: &str = env!("CARGO_BIN_EXE_other-process");
