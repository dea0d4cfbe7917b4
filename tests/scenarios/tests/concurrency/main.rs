//! Concurrency: many threads and processes while the state they depend on changes. No test sleeps.

mod changes;
mod health;
mod misses;
mod policies;
mod stores;
mod threads;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lz_engine::policy::{ListEntry, Pattern, Policy, Provenance};

/// Path of the second process.
const OTHER_PROCESS: &str = env!("CARGO_BIN_EXE_other-process");

/// Calls `work` on `threads` threads in a loop, with numbers that are distinct per thread, until `meanwhile`
/// returns. Every thread has called `work` once before `meanwhile` starts. Returns the number of calls of
/// `work`.
fn run_concurrently(threads: u64, work: impl Fn(u64) + Sync, meanwhile: impl FnOnce()) -> u64 {
    let (stop, runs) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Barrier::new(threads as usize + 1);
    thread::scope(|scope| {
        for number in 0..threads {
            let (stop, runs, begun, work) = (&stop, &runs, &begun, &work);
            scope.spawn(move || {
                work(number);
                begun.wait();
                let mut turn = number;
                while !stop.load(Ordering::Relaxed) {
                    turn += threads;
                    work(turn);
                    runs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        begun.wait();
        meanwhile();
        stop.store(true, Ordering::Relaxed);
    });
    runs.into_inner() + threads
}

/// Progress of state changes: `done` is the last completed change, `begun` the last one that has started.
#[derive(Default)]
struct Rounds {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Rounds {
    /// Applies a change as the given round.
    fn enter(&self, round: u64, change: impl FnOnce()) {
        self.begun.store(round, Ordering::SeqCst);
        change();
        self.done.store(round, Ordering::SeqCst);
    }

    /// Makes a call and returns the rounds that may have been active during it.
    fn during<T>(&self, call: impl FnOnce() -> T) -> (T, std::ops::RangeInclusive<u64>) {
        let before = self.done.load(Ordering::SeqCst);
        let answer = call();
        (answer, before..=self.begun.load(Ordering::SeqCst))
    }
}

/// A policy that allows only the kernels or backends that match the pattern.
fn only(pattern: &str) -> Policy {
    let listed = ListEntry {
        kernels: Pattern::new(pattern),
        operations: Pattern::any(),
        source: Provenance::new("layerzero.yaml:1"),
    };
    Policy { allow: vec![listed], ..Policy::default() }
}
