//! How a new state reaches those who decide: it is put in place first and announced second.
//!
//! Who sees an announced number therefore finds that state or a later one, and who holds a state whose number is still the
//! announced one may use it without looking further; who finds another number loads. This file is model-checked as it stands (`tests/publish_model.rs`),
//! which is why it names its primitives through `super::sync`.

use super::sync::{Arc, AtomicU64, Ordering, Place};

/// Something with a number that is never used twice.
pub(crate) trait Numbered {
    fn number(&self) -> u64;
}

/// The current state and its number.
#[derive(Debug)]
pub(crate) struct Published<T> {
    announced: AtomicU64,
    current: Place<T>,
}

impl<T: Numbered> Published<T> {
    pub fn new(first: Arc<T>) -> Published<T> {
        Published { announced: AtomicU64::new(first.number()), current: Place::new(first) }
    }

    /// The announced number.
    #[inline(always)]
    pub fn number(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// The current state, which is at least as new as any number that this thread has seen.
    pub fn load(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Replaces the state. Only one thread may do this at a time; the engine holds its lock meanwhile.
    pub fn replace(&self, next: Arc<T>) {
        let number = next.number();
        self.current.store(next);
        self.announced.store(number, Ordering::Release);
    }
}
