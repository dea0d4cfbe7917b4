//! Memory and time of one input, of the thread that runs the target.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use crate::Target;

/// Bytes of memory that each byte of an input may use.
const MEMORY_PER_BYTE: usize = 4096;

/// CPU time that an input may take. Far more than any does; the long form has a limit of its own.
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

/// CPU time of this thread. Wall-clock time would count pauses of a busy machine.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "no clock of CPU time");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs the body and checks what it used.
///
/// # Panics
/// If it used more than its input justifies.
pub fn within<R>(target: &Target, bytes: usize, body: impl FnOnce() -> R) -> R {
    let before = USED.get();
    PEAK.set(before);
    let start = cpu_time();
    let result = body();
    let elapsed = cpu_time().saturating_sub(start);
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
    fn cpu_time_grows_with_work_and_not_with_sleep() {
        let start = cpu_time();
        std::thread::sleep(Duration::from_millis(200));
        let asleep = cpu_time() - start;
        assert!(asleep < Duration::from_millis(200), "{asleep:?}");
        while cpu_time() == start + asleep {
            std::hint::spin_loop();
        }
    }

    #[test]
    #[should_panic(expected = "bytes of memory for 0 bytes of input")]
    fn memory_above_the_limit_is_a_finding() {
        within(&SMALL, 0, || drop(std::hint::black_box(vec![1u8; 1 << 21])));
    }
}
