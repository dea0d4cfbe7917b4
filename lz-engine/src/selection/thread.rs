//! What a thread has of its own, in one place: how its calls are to be made just now, and what it remembers of them.
//!
//! A call finds all of it with one look, because finding a thread's variables is not free in a shared library. Nothing in
//! here needs to be dropped, so that the look is not guarded either; memory of threads that end is kept for those that come.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::selection::thread_cache::Local;
use lz_core::mode::ModeChange;

/// What a thread has.
pub(crate) struct Thread {
    /// How the mode of its calls is changed just now.
    pub change: Cell<ModeChange>,
    /// Whether it is deciding: whoever is asked for evidence must not wait for itself.
    pub deciding: Cell<bool>,
    /// What it remembers; taken away while a call runs.
    local: Cell<Option<&'static mut Local>>,
    /// The same for calls that kernels make, when none is running.
    spare: Cell<Option<&'static mut Local>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            change: Cell::new(ModeChange::NONE),
            deciding: Cell::new(false),
            local: Cell::new(None),
            spare: Cell::new(None),
        }
    };
    /// Notices that the thread ends.
    static KEEPER: Keeper = const { Keeper };
}

/// Memory of threads that have ended, without content.
static LEFT: Mutex<Vec<&'static mut Local>> = Mutex::new(Vec::new());

/// Looks at this thread.
#[inline(always)]
pub(crate) fn with<R>(look: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(look)
}

impl Thread {
    /// Takes what the thread remembers, if it is there: a kernel that calls the engine again finds it taken. So nothing that
    /// a running call uses can be replaced under it.
    #[inline(always)]
    pub fn take(&self) -> Option<&'static mut Local> {
        self.local.take()
    }

    /// Something to remember with for a thread, or a call inside a call, that has nothing.
    #[cold]
    pub fn take_other(&self) -> &'static mut Local {
        if let Some(spare) = self.spare.take() {
            self.spare.set(spare.below.take());
            return spare;
        }
        let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner).pop();
        left.unwrap_or_else(|| Box::leak(Box::default()))
    }

    /// Gives it back.
    #[inline(always)]
    pub fn give_back(&self, local: &'static mut Local) {
        let known = local.is_kept;
        let inner = self.local.replace(Some(local));
        if inner.is_some() || !known {
            self.settle(inner);
        }
    }

    /// Tells what this thread has counted, on every level of its calls that is not running.
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

    /// What rarely happens when something was given back: a call inside the call has given back something before, or it is
    /// the first time, and from now on somebody notices the end of the thread. A thread that is ending already keeps nothing.
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
