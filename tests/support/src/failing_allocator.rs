//! An allocator that fails one allocation of a thread on purpose.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Range;

/// Which allocation fails.
#[derive(Clone, Copy)]
struct Plan {
    /// Smaller allocations never fail.
    min_bytes: usize,
    /// Allocations of this size and larger ones never fail.
    end_bytes: usize,
    /// How many succeed before one fails.
    left: u32,
    failed: bool,
}

thread_local! {
    static PLAN: Cell<Option<Plan>> = const { Cell::new(None) };
}

/// The allocator of a test program: `#[global_allocator] static ALLOCATOR: FailingAllocator = FailingAllocator;`
#[derive(Debug)]
pub struct FailingAllocator;

/// Whether this allocation fails.
fn fails(bytes: usize) -> bool {
    // Threads that end have no plan any more.
    let Ok(Some(mut plan)) = PLAN.try_with(Cell::get) else { return false };
    if plan.failed || !(plan.min_bytes..plan.end_bytes).contains(&bytes) {
        return false;
    }
    plan.failed = plan.left == 0;
    plan.left = plan.left.saturating_sub(1);
    PLAN.set(Some(plan));
    plan.failed
}

// SAFETY: every request is passed to the system, or answered with null, as the contract allows.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the caller.
        if fails(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the caller.
        if fails(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Memory that becomes smaller is always there.
        if bytes > layout.size() && fails(bytes) {
            return std::ptr::null_mut();
        }
        // SAFETY: as for the caller; after a failure the old memory is still valid, as the contract demands.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as for the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Runs `call` while the allocation with this number (from 0) of at least `min_bytes` bytes fails, on this thread only. Returns its result
/// and whether an allocation failed.
pub fn fail_allocation<R>(number: u32, min_bytes: usize, call: impl FnOnce() -> R) -> (R, bool) {
    fail_allocation_of(number, min_bytes..usize::MAX, call)
}

/// As [`fail_allocation`], for allocations of one of these sizes.
pub fn fail_allocation_of<R>(number: u32, sizes: Range<usize>, call: impl FnOnce() -> R) -> (R, bool) {
    PLAN.set(Some(Plan { min_bytes: sizes.start, end_bytes: sizes.end, left: number, failed: false }));
    let result = call();
    let failed = PLAN.take().is_some_and(|plan| plan.failed);
    (result, failed)
}
