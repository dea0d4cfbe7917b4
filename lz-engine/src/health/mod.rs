//! Health: which kernels, backends and devices may be called, and the degradation level of the engine.
//!
//! There is a circuit breaker per kernel and context bucket, per backend and per device. Only those with failures exist as
//! records, so on a healthy engine a check is one atomic load. Nothing here sleeps, reads the system clock directly or does
//! I/O: time comes from a [`Clock`], and rows are exchanged with `lz_perfdb`.

mod circuit;
mod clock;
mod config;
mod degradation;
mod monitor;
mod permit;
mod persist;
mod registry;
mod report;
#[cfg(test)]
mod tests;
mod view;

pub use circuit::{Admission, Circuit, Transition};
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{CircuitConfig, DegradationConfig, HealthConfig, PenaltyConfig};
pub use degradation::{Degradation, DegradationLevel, HealthInputs, LevelChange};
pub use monitor::{Change, Counters, Health, InstalledCounts, Summary};
pub use permit::{Failure, Permit, Refusal, RefusalScope, Subject};
pub use report::CircuitReport;
pub use view::CircuitStatus;
