//! Synchronization primitives for the files that are model-checked. The model checker substitutes its own.

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, OnceLock};

/// The cell that holds the current value.
pub(crate) type ArcCell<T> = arc_swap::ArcSwap<T>;
