//! Thread-local data in one variable: the mode override, the streams, and the thread states.
//!
//! One access per call, because thread-local access from a shared library is not free. The variable has no destructor, so access
//! needs no registration check; the states of threads that end are recycled through a free list.

use std::cell::Cell;

use crate::selection::thread_cache::ThreadState;
use lz_core::fork::Mutex;
use lz_core::mode::ModeOverride;

/// The data of a thread.
pub(crate) struct Thread {
    /// The mode override of its calls.
    pub change: Cell<ModeOverride>,
    /// Whether it is making a decision: an evidence source that calls the engine must not deadlock on the cell's lock.
    pub deciding: Cell<bool>,
    /// The number of calls that the current call on the slow path stands for in samples.
    pub weight: Cell<u32>,
    /// Its state; taken while a call runs.
    state: Cell<Option<&'static mut ThreadState>>,
    /// States for nested calls, while unused.
    spare: Cell<Option<&'static mut ThreadState>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            change: Cell::new(ModeOverride::NONE),
            deciding: Cell::new(false),
            weight: Cell::new(1),
            state: Cell::new(None),
            spare: Cell::new(None),
        }
    };
    /// Runs when the thread ends.
    static EXIT_HOOK: ExitHook = const { ExitHook };
}

/// Cleared states of ended threads.
static FREE_LIST: Mutex<Vec<&'static mut ThreadState>> = Mutex::new(Vec::new());

/// Accesses this thread's data.
#[inline(always)]
pub(crate) fn with<R>(look: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(look)
}

impl Thread {
    /// Takes the state unless it is in use: a nested call from a kernel gets `None`, so it cannot replace what the outer call
    /// uses.
    #[inline(always)]
    pub fn take(&self) -> Option<&'static mut ThreadState> {
        self.state.take()
    }

    /// A spare state, for a new thread or a nested call.
    #[cold]
    pub fn take_spare(&self) -> &'static mut ThreadState {
        if let Some(spare) = self.spare.take() {
            self.spare.set(spare.next_spare.take());
            return spare;
        }
        let recycled = FREE_LIST.lock().pop();
        recycled.unwrap_or_else(|| Box::leak(Box::default()))
    }

    /// Puts the state back.
    #[inline(always)]
    pub fn restore(&self, state: &'static mut ThreadState) {
        let known = state.has_exit_hook;
        let inner = self.state.replace(Some(state));
        if inner.is_some() || !known {
            self.restore_slow(inner);
        }
    }

    /// Flushes the counters of all states of this thread that are not in use.
    pub fn flush_all(&self) {
        if let Some(state) = self.state.take() {
            state.flush();
            self.state.set(Some(state));
        }
        let mut spare = self.spare.take();
        let mut level = spare.as_deref_mut();
        while let Some(one) = level {
            one.flush();
            level = one.next_spare.as_deref_mut();
        }
        self.spare.set(spare);
    }

    /// Drops the snapshots of all states of this thread that are not in use.
    pub fn release_all(&self) {
        if let Some(state) = self.state.take() {
            state.release();
            self.state.set(Some(state));
        }
        let mut spare = self.spare.take();
        let mut level = spare.as_deref_mut();
        while let Some(one) = level {
            one.release();
            level = one.next_spare.as_deref_mut();
        }
        self.spare.set(spare);
    }

    /// The rare cases of [`Thread::restore`]: a nested call has put its state back before, or the exit hook must be installed. A
    /// thread that is ending keeps no state.
    #[cold]
    #[inline(never)]
    fn restore_slow(&self, inner: Option<&'static mut ThreadState>) {
        if let Some(state) = self.state.take() {
            state.has_exit_hook = state.has_exit_hook || EXIT_HOOK.try_with(|_| ()).is_ok();
            if state.has_exit_hook {
                self.state.set(Some(state));
            } else {
                release(state);
            }
        }
        if let Some(inner) = inner {
            inner.next_spare = self.spare.take();
            self.spare.set(Some(inner));
        }
    }
}

fn release(state: &'static mut ThreadState) {
    *state = ThreadState::default();
    FREE_LIST.lock().push(state);
}

struct ExitHook;

impl Drop for ExitHook {
    fn drop(&mut self) {
        with(|thread| {
            if let Some(state) = thread.state.take() {
                release(state);
            }
            while let Some(spare) = thread.spare.take() {
                thread.spare.set(spare.next_spare.take());
                release(spare);
            }
        });
    }
}
