//! The file under test on words without sequential consistency, a seeded bug.

#[path = "../../src/handoff.rs"]
pub mod handoff;

primitives!(crate::no_fence);
