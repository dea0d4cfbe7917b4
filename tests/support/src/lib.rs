//! What test suites share: temporary folders, fixtures of wrong files, failing allocations, the catalogue as operations of run
//! time.

mod failing_allocator;
mod fixtures;
mod folder;

pub use failing_allocator::{FailingAllocator, fail_allocation, fail_allocation_of};
pub use fixtures::{fixtures, hold, operation, operations};
pub use folder::Folder;
