//! Compilation outside of calls: kernels that compile on first use are compiled beforehand (`warmup`) or in the background
//! (`JitQueue`), and until then another kernel does the work.
//!
//! Nothing here decides which kernel runs: it only makes kernels warm and says so to the engine. Nothing here runs inside a
//! call except [`JitRequests::want`](crate::engine::JitRequests), which puts a note into a queue.

mod compile_one;
mod config;
mod manifest;
mod queue;
mod warmup;

pub use config::JitConfig;
pub use manifest::{Manifest, ManifestEntry, ManifestState};
pub use queue::{JitCounters, JitQueue};
pub use warmup::{WarmupItem, WarmupProgress, WarmupReport};
