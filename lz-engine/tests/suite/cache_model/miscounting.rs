//! The files under test on a counter that is not atomic, a seeded bug.

#![allow(dead_code, reason = "the files under test have more functions than the model calls")]

#[path = "../../../src/selection/exact_cache.rs"]
pub mod exact_cache;
#[path = "../../../src/selection/slot_table.rs"]
pub mod slot_table;

primitives!(std::sync::atomic::Ordering::Acquire, crate::cache_model::torn_add);
