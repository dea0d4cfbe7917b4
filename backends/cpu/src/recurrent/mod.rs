//! Linear attention and state space models: a state per head that every position decays, updates and reads.
//!
//! `engine` runs the recurrence over blocks of columns of a state, which are independent and stay in L1 for all
//! positions. `linear` and `scan` prepare calls of `attention.linear.*` and `ssm.scan` for it. `step` is `ssm.step`, which
//! reads and writes each state once.

mod engine;
mod exact;
mod linear;
mod scan;
mod step;

pub(crate) use linear::{LinearDecode, LinearPrefill};
pub(crate) use scan::Scan;
pub(crate) use step::Step;
