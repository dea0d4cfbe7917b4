//! Which process this is. A forked child inherits the memory and descriptors of its parent's workers but neither the threads
//! that watch them nor a right to their connection, so everything that belongs to one process carries its fork generation.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the first process that used this module and the present one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The fork generation of this process. One atomic load, so that every call can compare it.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Counts forks from now on. Called before anything that carries a generation is created.
pub(crate) fn watch() {
    extern "C" fn count() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static REGISTERED: Once = Once::new();
    // SAFETY: the handler only changes an atomic, which is allowed in the child of a process with threads.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(count));
    });
}
