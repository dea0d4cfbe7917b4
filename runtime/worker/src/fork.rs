//! Fork detection. A forked child inherits the memory and file descriptors of its parent's workers, but not the threads that watch them,
//! and it must not use their channel. Everything that belongs to one process therefore carries its fork generation.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the first process that used this module and the present one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The fork generation of this process. One atomic load, cheap enough for every call.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Registers the fork handler. Must be called before anything with a generation is created.
pub(crate) fn watch() {
    extern "C" fn count() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static REGISTERED: Once = Once::new();
    // SAFETY: the handler only modifies an atomic, which is permitted in the child of a multithreaded process.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(count));
    });
}
