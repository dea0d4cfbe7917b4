//! Model-checks how calls are handed to a worker and back, in every order that the memory model allows, with few preemptions. The
//! file under test is the real one.
//!
//! Waits have no timeout here, so a lost wakeup is a deadlock, which the model checker reports. With the seeded bug, words without
//! sequential consistency, it must report one.

use std::sync::Arc;
use std::time::Duration;

use loom::model::Builder;
use loom::thread;

/// The replacement of `runtime/worker/src/sync.rs` for the model checker. `$fence` surrounds what is sequentially consistent: the
/// model checker itself treats it as acquire and release.
macro_rules! primitives {
    ($fence:expr) => {
        pub mod sync {
            use std::time::Duration;

            pub(crate) use loom::sync::atomic::Ordering;
            use loom::sync::{Mutex, Notify};

            /// A word, whether a thread sleeps on it, and how it is woken. Each word has one thread that sleeps on it.
            pub(crate) struct AtomicU32 {
                word: loom::sync::atomic::AtomicU32,
                sleeping: Mutex<bool>,
                woken: Notify,
            }

            impl AtomicU32 {
                pub fn new(word: u32) -> AtomicU32 {
                    let word = loom::sync::atomic::AtomicU32::new(word);
                    AtomicU32 { word, sleeping: Mutex::new(false), woken: Notify::new() }
                }

                fn ordered<R>(
                    &self,
                    order: Ordering,
                    access: impl FnOnce(&loom::sync::atomic::AtomicU32) -> R,
                ) -> R {
                    if order == Ordering::SeqCst {
                        $fence();
                    }
                    let result = access(&self.word);
                    if order == Ordering::SeqCst {
                        $fence();
                    }
                    result
                }

                pub fn load(&self, order: Ordering) -> u32 {
                    self.ordered(order, |word| {
                        word.load(if order == Ordering::SeqCst { Ordering::Acquire } else { order })
                    })
                }

                pub fn store(&self, value: u32, order: Ordering) {
                    let weak = if order == Ordering::SeqCst { Ordering::Release } else { order };
                    self.ordered(order, |word| word.store(value, weak));
                }

                pub fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
                    let weak = if order == Ordering::SeqCst { Ordering::AcqRel } else { order };
                    self.ordered(order, |word| word.fetch_add(value, weak))
                }
            }

            pub(crate) fn spin(word: &AtomicU32, value: u32, _: u32) -> bool {
                word.load(Ordering::Acquire) != value
            }

            /// The kernel compares the word and enqueues the thread in one step.
            pub(crate) fn futex_wait(word: &AtomicU32, value: u32, _: Duration) {
                let mut sleeping = word.sleeping.lock().expect("no thread panics");
                if word.load(Ordering::SeqCst) != value {
                    return;
                }
                *sleeping = true;
                drop(sleeping);
                word.woken.wait();
            }

            pub(crate) fn futex_wake(word: &AtomicU32) {
                let mut sleeping = word.sleeping.lock().expect("no thread panics");
                if std::mem::take(&mut *sleeping) {
                    word.woken.notify();
                }
            }
        }
    };
}

fn full_fence() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}

/// A seeded bug: no order between the flag of one side and the word of the other.
fn no_fence() {}

#[allow(clippy::duplicate_mod, reason = "the file is also checked on primitives with a seeded bug")]
mod handoff_model {
    pub mod real;
    pub mod unordered;
}

/// A host and a worker exchange calls in one slot: every call is taken once, in order, and answered.
macro_rules! model {
    ($name:ident, $calls:expr) => {
        || {
            use handoff_model::$name::handoff;
            use handoff_model::$name::sync::{AtomicU32, Ordering};
            struct Control {
                state: AtomicU32,
                host_asleep: AtomicU32,
                ring: [AtomicU32; 2],
                doorbell: AtomicU32,
                worker_asleep: AtomicU32,
                message: AtomicU32,
            }
            let word = || AtomicU32::new(0);
            let control = Arc::new(Control {
                state: word(),
                host_asleep: word(),
                ring: [word(), word()],
                doorbell: word(),
                worker_asleep: word(),
                message: word(),
            });
            let token = |ticket: u32| (ticket + 1) * 2;
            let worker = {
                let control = Arc::clone(&control);
                thread::spawn(move || {
                    for ticket in 0..$calls {
                        let bell = (&control.doorbell, &control.worker_asleep);
                        let slot = loop {
                            if let Some(slot) =
                                handoff::take(&control.ring[ticket as usize % 2], bell, Duration::ZERO)
                            {
                                break slot;
                            }
                        };
                        assert_eq!(slot, 0);
                        // The message was written before the slot was submitted.
                        assert_eq!(control.message.load(Ordering::Relaxed), 10 + ticket);
                        control.message.store(20 + ticket, Ordering::Relaxed);
                        handoff::answer(&control.state, &control.host_asleep, token(ticket));
                    }
                })
            };
            for ticket in 0..$calls {
                control.message.store(10 + ticket, Ordering::Relaxed);
                let entry = &control.ring[ticket as usize % 2];
                let bell = (&control.doorbell, &control.worker_asleep);
                handoff::submit((&control.state, token(ticket)), (entry, 0), bell);
                loop {
                    let state = handoff::await_answer(
                        &control.state,
                        &control.host_asleep,
                        token(ticket),
                        Duration::ZERO,
                    );
                    if state == handoff::answered(token(ticket)) {
                        break;
                    }
                    assert_eq!(state, token(ticket), "neither the call nor its answer");
                }
                assert_eq!(
                    control.message.load(Ordering::Relaxed),
                    20 + ticket,
                    "the answer of another call"
                );
            }
            worker.join().expect("the worker does not panic");
        }
    };
}

fn explore(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

#[test]
fn every_call_is_taken_and_answered() {
    explore(3, model!(real, 1));
    explore(1, model!(real, 2));
}

#[test]
fn the_model_notices_lost_wakeups() {
    let lost = std::panic::catch_unwind(|| explore(2, model!(unordered, 1)));
    assert!(lost.is_err());
}
