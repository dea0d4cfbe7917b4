//! Compilation outside of calls: JIT kernels are compiled ahead of time (`warmup`) or in the background (`JitQueue`), and other kernels
//! run until then.
//!
//! Nothing here selects: it compiles kernels and marks them as warm in the engine. Nothing here runs inside a call except
//! [`JitRequests::request`](crate::engine::JitRequests), which inserts a request into a queue.

mod compile_one;
mod config;
mod manifest;
mod queue;
mod warmup;

pub use config::JitConfig;
pub use manifest::{Manifest, ManifestEntry, ManifestState};
pub use queue::{JitCounters, JitQueue};
pub use warmup::{WarmupItem, WarmupProgress, WarmupReport};
