//! A house to meet operators' days in: the real catalogue, typed calls, kernels that are specified like those of well-known
//! libraries, devices that need not be there, policies and databases on disk, and a second process.
//!
//! The scenarios themselves are in `tests/`, one test each; `performance` has those that are measured instead of asserted.

pub mod calls;
pub mod house;
pub mod kernels;
pub mod measured;
pub mod performance;
pub mod process;
pub mod tensors;
