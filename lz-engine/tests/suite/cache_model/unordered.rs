//! The files under test on slots that are read without ordering, a seeded bug.

#![allow(dead_code, reason = "the files under test have more functions than the model calls")]

#[path = "../../../src/selection/exact_cache.rs"]
pub mod exact_cache;
#[path = "../../../src/selection/slot_table.rs"]
pub mod slot_table;

primitives!(std::sync::atomic::Ordering::Relaxed, crate::cache_model::atomic_add);
