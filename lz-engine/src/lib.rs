//! The selection engine: which kernel runs this call, on this device, under this policy, and why.
//!
//! `selection` decides, under one immutable snapshot of registry, policy, devices and health; `engine` dispatches and falls
//! back. Above them are their clients: `explain`, `planner`, `solver`, `tune`, `freeze`, `split`, `jit`, `speculative`, `quant`, `verify`.
//!
//! Never depends on particular operations or on bindings. Generated code hands over packed contexts and typed kernels; operations
//! that were read at run time come with dynamic arguments and take the same path.

pub mod bucket;
mod compiled;
mod condition_parts;
pub mod dynamic;
pub mod engine;
pub mod evidence;
pub mod explain;
pub mod freeze;
pub mod health;
pub mod jit;
pub mod log;
pub mod mode;
pub mod planner;
pub mod policy;
pub mod quant;
pub mod readiness;
pub mod registry;
pub mod reload;
pub mod replace;
pub mod rollout;
mod selection;
pub mod solver;
pub mod speculative;
pub mod table;
pub mod telemetry;
pub mod tune;
pub mod verify;

pub use dynamic::split;
pub use engine::{Engine, EngineBuilder, HeldSnapshot, Pinned};
pub use explain::Explanation;
pub use policy::Policy;
pub use selection::loaded_tables::TableState;
pub use selection::score;
pub use selection::thread_scope::{OverlayIdsExhausted, PolicyScope};
