//! The selection engine: which kernel runs this call, on this device, under this policy, and why.
//!
//! Nothing here knows a particular operation. Generated code hands over packed contexts and typed kernels; operations
//! that were read at run time come with dynamic arguments and go through the same rooms.

pub mod args;
pub mod bucket;
pub mod built_in;
mod cache;
pub mod call;
pub mod check;
mod compiled;
pub mod context;
mod contract;
pub mod descriptor;
pub mod device;
pub mod dynamic;
pub mod element;
pub mod engine;
pub mod error;
pub mod evidence;
pub mod explain;
pub mod expression_names;
pub mod failure;
pub mod files;
mod filter;
pub mod freeze;
mod generated;
pub mod health;
pub mod jit;
pub mod kernel;
mod known;
pub mod mode;
pub mod operation;
mod part;
pub mod perfdb;
pub mod plan;
pub mod planner;
pub mod policy;
pub mod quant;
pub mod reason;
mod reason_codes;
pub mod registry;
pub mod reload;
pub mod run;
pub mod score;
pub mod solver;
pub mod spec;
pub mod speculative;
pub mod split;
pub mod table;
pub mod telemetry;
pub mod tensor;
mod thread;
mod thread_scope;
pub mod tune;

pub use lz_schema::DType;
pub use lz_schema::expr;

pub use args::{Arg, Handle, OutArg};
pub use context::Context;
pub use engine::{Engine, EngineBuilder, Moment, Pinned};
pub use error::Error;
pub use explain::Explanation;
pub use failure::{Cause, Severity};
pub use kernel::{FusedKernel, FusedPart, Judge, Kernel, KernelEntry, KernelError};
pub use operation::OperationInfo;
pub use plan::Plan;
pub use policy::Policy;
pub use reason::{Reason, ReasonCode};
pub use run::Run;
pub use spec::KernelSpec;
pub use tensor::{Tensor, TensorMut, TensorView};
