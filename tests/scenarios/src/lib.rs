//! Test fixtures of the scenarios: the real operation catalog, typed calls, kernel specs of well-known
//! libraries, simulated devices, policy files, databases on disk, and a second process.
//!
//! The scenarios are in `tests/`, one test each; `performance` holds those that are benchmarked instead of
//! asserted.

pub mod calls;
pub mod engines;
pub mod kernels;
pub mod measured;
pub mod performance;
pub mod process;
pub mod tensors;
