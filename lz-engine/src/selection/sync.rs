//! Synchronization primitives for `publish`. The model checker substitutes its own.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// The cell that holds the current value.
pub(crate) type ArcCell<T> = arc_swap::ArcSwap<T>;
