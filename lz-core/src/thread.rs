//! Thread-local data in one variable: the mode override, the streams, and the thread states.
//!
//! One access per call, because thread-local access from a shared library is not free. The variable has no destructor, so access
//! needs no registration check; the states of threads that end are recycled through a free list.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::engine::Local;
use crate::mode::ModeChange;

/// The data of a thread.
pub(crate) struct Thread {
    /// The mode override of its calls.
    pub change: Cell<ModeChange>,
    /// The stream of its calls; 0 is the default stream.
    pub stream: Cell<usize>,
    /// The stream of the current call; takes precedence over `stream`.
    pub stream_of_call: Cell<Option<usize>>,
    /// Whether it is making a decision: an evidence source that calls the engine must not deadlock on the cell's lock.
    pub deciding: Cell<bool>,
    /// Its state; taken while a call runs.
    local: Cell<Option<&'static mut Local>>,
    /// States for nested calls, while unused.
    spare: Cell<Option<&'static mut Local>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            change: Cell::new(ModeChange::NONE),
            stream: Cell::new(0),
            stream_of_call: Cell::new(None),
            deciding: Cell::new(false),
            local: Cell::new(None),
            spare: Cell::new(None),
        }
    };
    /// Runs when the thread ends.
    static KEEPER: Keeper = const { Keeper };
}

/// Cleared states of ended threads.
static LEFT: Mutex<Vec<&'static mut Local>> = Mutex::new(Vec::new());

/// Accesses this thread's data.
#[inline(always)]
pub(crate) fn with<R>(look: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(look)
}

impl Thread {
    /// Takes the state unless it is in use: a nested call from a kernel gets `None`, so it cannot replace what the outer call
    /// uses.
    #[inline(always)]
    pub fn take(&self) -> Option<&'static mut Local> {
        self.local.take()
    }

    /// A spare state, for a new thread or a nested call.
    #[cold]
    pub fn take_other(&self) -> &'static mut Local {
        if let Some(spare) = self.spare.take() {
            self.spare.set(spare.below.take());
            return spare;
        }
        let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner).pop();
        left.unwrap_or_else(|| Box::leak(Box::default()))
    }

    /// Puts the state back.
    #[inline(always)]
    pub fn give_back(&self, local: &'static mut Local) {
        let known = local.is_kept;
        let inner = self.local.replace(Some(local));
        if inner.is_some() || !known {
            self.settle(inner);
        }
    }

    /// Flushes the counters of all states of this thread that are not in use.
    pub fn tell_all(&self) {
        if let Some(local) = self.local.take() {
            local.tell();
            self.local.set(Some(local));
        }
        let mut spare = self.spare.take();
        let mut level = spare.as_deref_mut();
        while let Some(one) = level {
            one.tell();
            level = one.below.as_deref_mut();
        }
        self.spare.set(spare);
    }

    /// The rare cases of [`Thread::restore`]: a nested call has put its state back before, or the exit hook must be installed. A
    /// thread that is ending keeps no state.
    #[cold]
    #[inline(never)]
    fn settle(&self, inner: Option<&'static mut Local>) {
        if let Some(local) = self.local.take() {
            local.is_kept = local.is_kept || KEEPER.try_with(|_| ()).is_ok();
            if local.is_kept {
                self.local.set(Some(local));
            } else {
                leave(local);
            }
        }
        if let Some(inner) = inner {
            inner.below = self.spare.take();
            self.spare.set(Some(inner));
        }
    }
}

fn leave(local: &'static mut Local) {
    *local = Local::default();
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(local);
}

struct Keeper;

impl Drop for Keeper {
    fn drop(&mut self) {
        with(|thread| {
            if let Some(local) = thread.local.take() {
                leave(local);
            }
            while let Some(spare) = thread.spare.take() {
                thread.spare.set(spare.below.take());
                leave(spare);
            }
        });
    }
}
