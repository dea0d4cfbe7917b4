//! Publishes a new snapshot: stores it first, then its generation.
//!
//! A reader that sees a generation therefore loads that snapshot or a later one, and a reader whose snapshot has the published
//! generation may use it without loading. This file is model-checked unmodified (`tests/publish_model.rs`), so it imports its
//! primitives through `super::sync`.

use super::sync::{Arc, ArcCell, AtomicU64, Ordering};

/// A value with a unique number.
pub(crate) trait Numbered {
    fn number(&self) -> u64;
}

/// The current value and its number.
#[derive(Debug)]
pub(crate) struct Published<T> {
    announced: AtomicU64,
    current: ArcCell<T>,
}

impl<T: Numbered> Published<T> {
    pub fn new(first: Arc<T>) -> Published<T> {
        Published { announced: AtomicU64::new(first.number()), current: ArcCell::new(first) }
    }

    /// The published number.
    #[inline(always)]
    pub fn number(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// The current value, at least as new as any number that this thread has seen.
    pub fn load(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Replaces the value. Callers must serialize; the engine holds its lock.
    pub fn replace(&self, next: Arc<T>) {
        let number = next.number();
        self.current.store(next);
        self.announced.store(number, Ordering::Release);
    }
}
