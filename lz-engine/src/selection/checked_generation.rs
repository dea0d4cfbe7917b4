//! The generation in which a pinned kernel was last checked.
//!
//! Model-checked unmodified (`tests/suite/cache_model.rs`), so it imports its primitives through `super::sync`.

use super::sync::{AtomicU64, Ordering};

/// The last generation in which a kernel was checked; 0 for none. Shared by the threads that use a plan handle.
#[derive(Debug)]
pub(crate) struct CheckedGeneration(AtomicU64);

impl CheckedGeneration {
    /// Checked in this generation, or in none.
    pub fn new(generation: Option<u64>) -> CheckedGeneration {
        CheckedGeneration(AtomicU64::new(generation.unwrap_or(0)))
    }

    /// Whether the kernel was checked in the published generation. Nothing is read through the number, so it needs no ordering; a
    /// thread that sees an old one checks again.
    #[inline(always)]
    pub fn is(&self, published: u64) -> bool {
        self.0.load(Ordering::Relaxed) == published
    }

    /// Records a check. The generation is that of the snapshot that was checked, never the published one: a later snapshot may
    /// have been published meanwhile.
    pub fn record(&self, generation: u64) {
        self.0.store(generation, Ordering::Relaxed);
    }
}
