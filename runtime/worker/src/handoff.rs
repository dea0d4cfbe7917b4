//! How a call is handed to the worker and back: the words of the control memory, without a lock.
//!
//! A side that is about to sleep sets its flag and then looks once more; the other side changes its word and then reads the flag.
//! Both orders are sequentially consistent, so that one of them sees the other and no wakeup is lost. This file is model-checked
//! unmodified (`tests/handoff_model.rs`), so it imports its primitives through `super::sync`.

use std::time::Duration;

use super::sync::{AtomicU32, Ordering, futex_wait, futex_wake, spin};

/// Spin iterations before sleeping: tens of microseconds, longer than a small call.
const SPIN_ITERATIONS: u32 = 10_000;

/// The state of an answered call with this token. Tokens are even and never 0.
pub const fn answered(token: u32) -> u32 {
    token | 1
}

/// The host submits a filled slot: `state` is the slot's, `entry` that of its ticket in the ring, which is free.
pub(crate) fn submit(
    (state, token): (&AtomicU32, u32),
    (entry, number): (&AtomicU32, usize),
    (doorbell, asleep): (&AtomicU32, &AtomicU32),
) {
    state.store(token, Ordering::Release);
    entry.store(number as u32 + 1, Ordering::Release);
    doorbell.fetch_add(1, Ordering::SeqCst);
    if asleep.load(Ordering::SeqCst) != 0 {
        futex_wake(doorbell);
    }
}

/// The worker takes the slot of an entry of the ring, waiting for its submission; `None` after the timeout.
pub(crate) fn take(
    entry: &AtomicU32,
    (doorbell, asleep): (&AtomicU32, &AtomicU32),
    timeout: Duration,
) -> Option<usize> {
    // Only the worker clears an entry, and the host fills it again after it has seen the answer.
    let take_entry = || match entry.load(Ordering::Acquire) {
        0 => None,
        number => {
            entry.store(0, Ordering::Relaxed);
            Some(number as usize - 1)
        }
    };
    if spin(entry, 0, SPIN_ITERATIONS) {
        return take_entry();
    }
    asleep.store(1, Ordering::SeqCst);
    let rung = doorbell.load(Ordering::SeqCst);
    if entry.load(Ordering::Acquire) == 0 {
        futex_wait(doorbell, rung, timeout);
    }
    asleep.store(0, Ordering::SeqCst);
    take_entry()
}

/// The worker marks the call of a slot as answered.
pub(crate) fn answer(state: &AtomicU32, asleep: &AtomicU32, token: u32) {
    state.store(answered(token), Ordering::SeqCst);
    if asleep.load(Ordering::SeqCst) != 0 {
        futex_wake(state);
    }
}

/// The host waits until the state of a slot is no longer `token` or the timeout expires, and returns the state.
pub(crate) fn await_answer(state: &AtomicU32, asleep: &AtomicU32, token: u32, timeout: Duration) -> u32 {
    if !spin(state, token, SPIN_ITERATIONS) {
        asleep.store(1, Ordering::SeqCst);
        futex_wait(state, token, timeout);
        asleep.store(0, Ordering::SeqCst);
    }
    state.load(Ordering::Acquire)
}
