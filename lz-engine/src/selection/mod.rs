//! Which kernel runs a call: the immutable snapshot that decisions are made under, filter and score over the candidates of an
//! operation, and the caches of decisions.
//!
//! Nothing here runs a kernel.

pub(crate) mod cache;
pub(crate) mod call;
pub(crate) mod checked_generation;
mod copied_inputs;
pub(crate) mod decide;
pub(crate) mod devices;
pub(crate) mod exact_cache;
#[cfg(test)]
mod exact_cache_tests;
pub(crate) mod filter;
pub(crate) mod guard;
pub(crate) mod loaded_tables;
pub(crate) mod operation_table;
mod prefilter;
pub(crate) mod prepared_evidence;
pub(crate) mod publish;
mod scoped_snapshots;
pub mod score;
mod slot_table;
pub(crate) mod snapshot;
pub(crate) mod split;
mod split_axis;
mod sync;
#[cfg(test)]
mod tests;
pub(crate) mod thread;
pub(crate) mod thread_cache;
pub(crate) mod thread_scope;
