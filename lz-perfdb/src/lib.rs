//! The performance database (PerfDB): persistent measurements with their conditions, and failures of kernels.
//!
//! One SQLite file in WAL mode, shared by any number of processes. It is optional: if it cannot be opened, is damaged, read-only
//! or out of space, reads return nothing, writes are dropped with a reason, [`PerfDb::status`] reports it, and selection
//! continues. Scoring of measurements and the meaning of bucket words are not defined here.
//!
//! The only crate that depends on SQLite. Never depends on the engine or on operations.

mod bucket;
mod confidence;
mod diff;
mod exchange;
mod filter;
mod fleet;
mod health_rows;
mod measurements;
mod merge;
mod migrations;
mod records;
mod snapshot;
mod store;
mod trial_marks;
mod trial_rows;

pub use bucket::{Bucket, MalformedBucket};
pub use confidence::{AGE_HALF_LIFE_SECONDS, confidence, decay};
pub use diff::{
    CallDifference, Change, DiffOptions, Difference, KernelDifference, Measured, Side, VersionDifference,
    compare, diff,
};
pub use exchange::{
    EXCHANGE_FORMAT, EXCHANGE_VERSION, ExportError, Exported, ImportError, ImportReport, RejectedLine,
};
pub use filter::{Filter, Invalidation};
pub use fleet::{fleet_file, replace_fleet_file};
pub use health_rows::{HealthReset, HealthRow, HealthScope, HealthState};
pub use measurements::Query;
pub use merge::{MergeError, MergeReport, merge};
pub use migrations::SCHEMA_VERSION;
pub use records::{Evidence, EvidenceKey, Measurement, Rejection, Setting, Timing, device_type};
pub use snapshot::OperationEvidence;
pub use store::{ClosedReason, DropReason, Mode, OpenStatus, Opened, Options, PerfDb, Status, unix_now};
pub use trial_marks::{Marks, collect_crashes};
pub use trial_rows::{ProcessIdentity, TrialMark};
