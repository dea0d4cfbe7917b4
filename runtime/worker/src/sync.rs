//! Synchronization primitives for `handoff`. The model checker substitutes its own.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use crate::memory::{futex_wait, futex_wake, spin};
