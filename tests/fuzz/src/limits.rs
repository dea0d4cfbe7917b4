//! Memory and time of one input. Memory is counted on the thread that runs the target.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::Target;

/// Bytes of memory that each byte of an input may use.
const MEMORY_PER_BYTE: usize = 4096;

/// Time that an input may take. Far more than any does, because test machines are busy; the long form has a limit of its own.
const MAX_TIME: Duration = Duration::from_secs(20);

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn grow(bytes: usize) {
    // Destructors of other thread-local values may run after these are gone.
    let used = USED.try_with(|used| {
        used.set(used.get().saturating_add_unsigned(bytes));
        used.get()
    });
    let _ = PEAK.try_with(|peak| peak.set(peak.get().max(used.unwrap_or_default())));
}

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller guarantees a valid layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller guarantees a valid layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = USED.try_with(|used| used.set(used.get().saturating_sub_unsigned(layout.size())));
        // SAFETY: the caller guarantees a valid pointer and layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs the body and checks what it used.
///
/// # Panics
/// If it used more than its input justifies.
pub fn within<R>(target: &Target, bytes: usize, body: impl FnOnce() -> R) -> R {
    let before = USED.get();
    PEAK.set(before);
    let start = Instant::now();
    let result = body();
    let elapsed = start.elapsed();
    let used = PEAK.get().saturating_sub(before).max(0) as usize;
    let allowed = target.base_memory + MEMORY_PER_BYTE * bytes;
    assert!(used <= allowed, "{}: {used} bytes of memory for {bytes} bytes of input", target.name);
    assert!(elapsed <= MAX_TIME, "{}: {elapsed:?} for {bytes} bytes of input", target.name);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Target =
        Target { name: "small", run: |_| true, mutations: 0, max_bytes: 0, base_memory: 1 << 20 };

    #[test]
    fn memory_within_the_limit_is_accepted() {
        within(&SMALL, 0, || drop(std::hint::black_box(vec![1u8; 1 << 19])));
    }

    #[test]
    #[should_panic(expected = "bytes of memory for 0 bytes of input")]
    fn memory_above_the_limit_is_a_finding() {
        within(&SMALL, 0, || drop(std::hint::black_box(vec![1u8; 1 << 21])));
    }
}
