//! Forks while the database is in use. A forked child has only the thread that forked: a lock that another thread held, ours or one
//! inside SQLite, stays locked in the child forever. A fork therefore waits until no thread uses the database. If that takes too long,
//! the child does not use it at all.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a fork waits: longer than a read or an attempt to write waits for other processes.
const MAX_WAIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_micros(200);

/// Number of threads that use a database.
static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// Number of forks that wait or are in progress; while there is one, no thread starts to use a database.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// Whether this process was forked while a thread used a database.
static UNUSABLE: AtomicBool = AtomicBool::new(false);

/// Permission to use databases, until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse(());

impl InUse {
    /// Waits for a fork in progress. `None` if databases cannot be used in this process.
    pub fn enter() -> Option<InUse> {
        register();
        loop {
            while FORKING.load(Ordering::SeqCst) != 0 {
                std::thread::sleep(PAUSE);
            }
            ACTIVE.fetch_add(1, Ordering::SeqCst);
            if FORKING.load(Ordering::SeqCst) == 0 {
                break;
            }
            ACTIVE.fetch_sub(1, Ordering::SeqCst);
        }
        let in_use = InUse(());
        (!UNUSABLE.load(Ordering::SeqCst)).then_some(in_use)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

fn register() {
    extern "C" fn before() {
        FORKING.fetch_add(1, Ordering::SeqCst);
        let deadline = Instant::now() + MAX_WAIT;
        while ACTIVE.load(Ordering::SeqCst) != 0 && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
    }
    extern "C" fn in_parent() {
        FORKING.fetch_sub(1, Ordering::SeqCst);
    }
    extern "C" fn in_child() {
        if ACTIVE.swap(0, Ordering::SeqCst) != 0 {
            UNUSABLE.store(true, Ordering::SeqCst);
        }
        FORKING.store(0, Ordering::SeqCst);
    }
    static REGISTERED: Once = Once::new();
    // SAFETY: the handlers only sleep and modify atomics, which is permitted around the fork of a multithreaded process.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}
