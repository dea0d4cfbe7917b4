//! The file under test on sound primitives.

#[path = "../../src/handoff.rs"]
pub mod handoff;

primitives!(crate::full_fence);
