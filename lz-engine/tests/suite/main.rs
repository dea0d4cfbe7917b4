//! The suite of `lz-engine`, in one binary. Tests that count allocations have binaries of their own.

mod cache_soundness;
mod concurrency;
mod descriptors;
mod dispatch_tables;
mod engine_builder;
mod engine_support;
mod explain;
mod freeze;
mod health_monitor;
mod jit_queue;
mod pinned;
mod planner;
mod policy_files;
mod prefilter;
mod publish_model;
mod reasons;
mod reference_kernels;
mod reload;
mod selection;
mod selection_conditions;
mod speculative_and_quant;
mod split;
mod table_files;
mod telemetry;
mod thread_scopes;
mod tune;
