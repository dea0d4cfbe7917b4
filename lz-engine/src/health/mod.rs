//! Health: which kernels, backends and devices may be called now, and how far the engine as a whole has to step back.
//!
//! A circuit stands before every kernel in every context bucket, before every backend and before every device. Only those
//! that failed exist as records, so that on a healthy engine all of this is one atomic load. Nothing here sleeps, reads a
//! clock of its own or touches a disk: time comes from a [`Clock`], and rows go to and from `lz_perfdb`.

mod circuit;
mod clock;
mod config;
mod degradation;
mod monitor;
mod permit;
mod persist;
mod registry;
mod report;
mod view;

pub use circuit::{Circuit, Transition, Verdict};
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{CircuitConfig, DegradationConfig, HealthConfig, PenaltyConfig};
pub use degradation::{Degradation, DegradationLevel, LevelChange, Vitals};
pub use monitor::{Change, Counters, Health, Population, Summary};
pub use permit::{Failure, Permit, Refusal, RefusalScope, Subject};
pub use report::CircuitReport;
pub use view::Standing;
