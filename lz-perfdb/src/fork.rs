//! Forks of a process whose threads hold locks. A forked child has only the thread that forked: a lock that another thread held, ours
//! or one inside SQLite, stays locked in the child forever. A fork therefore waits until no thread is in a [`Gate`]. If that takes too
//! long, entering reports it in the child, which must not wait for the locks behind the gate.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a fork waits at each gate: longer than a read or an attempt to write waits for other processes.
const MAX_WAIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_micros(200);

/// Code that holds locks, and that a fork waits for.
#[derive(Debug)]
pub struct Gate {
    /// The index of the thread's depth.
    number: usize,
    /// Number of threads inside.
    active: AtomicU32,
    /// Number of forks that wait or are in progress; while there is one, no thread enters.
    forking: AtomicU32,
    /// Whether this process was forked while another thread was inside.
    abandoned: AtomicBool,
}

/// Decisions and changes of an engine.
pub static ENGINE: Gate = Gate::new(0);
/// Uses of a database.
pub(crate) static DATABASE: Gate = Gate::new(1);

/// Outer gates first: a thread inside of one may enter a later one, so that one must still be open while the fork waits for the first.
static GATES: [&Gate; 2] = [&ENGINE, &DATABASE];

thread_local! {
    /// How often this thread is inside of each gate.
    static DEPTHS: [Cell<u32>; GATES.len()] = const { [const { Cell::new(0) }; GATES.len()] };
}

/// Presence inside of a gate, until it is dropped.
#[derive(Debug)]
pub struct Inside {
    gate: &'static Gate,
    /// Presence belongs to the thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Gate {
    const fn new(number: usize) -> Gate {
        Gate {
            number,
            active: AtomicU32::new(0),
            forking: AtomicU32::new(0),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Waits for a fork in progress, unless this thread is inside already. `None` if another thread of the parent was inside when this
    /// process was forked, so that locks behind the gate may be locked forever.
    pub fn enter(&'static self) -> Option<Inside> {
        register();
        if self.depth() == 0 {
            loop {
                while self.forking.load(Ordering::SeqCst) != 0 {
                    std::thread::sleep(PAUSE);
                }
                self.active.fetch_add(1, Ordering::SeqCst);
                if self.forking.load(Ordering::SeqCst) == 0 {
                    break;
                }
                self.active.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.set_depth(self.depth() + 1);
        let inside = Inside { gate: self, _not_send: std::marker::PhantomData };
        (!self.abandoned.load(Ordering::SeqCst)).then_some(inside)
    }

    /// How often this thread is inside.
    fn depth(&self) -> u32 {
        DEPTHS.with(|depths| depths[self.number].get())
    }

    fn set_depth(&self, depth: u32) {
        DEPTHS.with(|depths| depths[self.number].set(depth));
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let left = self.gate.depth().saturating_sub(1);
        self.gate.set_depth(left);
        if left == 0 {
            self.gate.active.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn register() {
    extern "C" fn before() {
        for gate in GATES {
            gate.forking.fetch_add(1, Ordering::SeqCst);
            let deadline = Instant::now() + MAX_WAIT;
            // The thread that forks may be inside itself.
            let own = gate.depth().min(1);
            while gate.active.load(Ordering::SeqCst) != own && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
        }
    }
    extern "C" fn in_parent() {
        for gate in GATES {
            gate.forking.fetch_sub(1, Ordering::SeqCst);
        }
    }
    extern "C" fn in_child() {
        for gate in GATES {
            let own = gate.depth().min(1);
            if gate.active.swap(own, Ordering::SeqCst) != own {
                gate.abandoned.store(true, Ordering::SeqCst);
            }
            gate.forking.store(0, Ordering::SeqCst);
        }
    }
    static REGISTERED: Once = Once::new();
    // SAFETY: the handlers only sleep and modify atomics, which is permitted around the fork of a multithreaded process.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}
