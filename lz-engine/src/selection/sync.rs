//! The primitives behind publishing. The model replaces this file by one that can be explored.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// A place for the current state.
pub(crate) type Place<T> = arc_swap::ArcSwap<T>;
