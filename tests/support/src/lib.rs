//! What test suites share: temporary folders, fixtures of wrong files, failing allocations, forked children, the catalog as operations of run
//! time.

mod failing_allocator;
mod fixtures;
mod folder;
mod forked;

pub use failing_allocator::{FailingAllocator, fail_allocation, fail_allocation_of};
pub use fixtures::{fixtures, hold, operation, operations};
pub use folder::Folder;
pub use forked::in_child;
