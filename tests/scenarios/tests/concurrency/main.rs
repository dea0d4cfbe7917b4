//! Concurrency: many threads and processes at once, while what they depend on changes. Nothing here waits by sleeping.

mod changes;
mod health;
mod misses;
mod policies;
mod stores;
mod threads;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lz_engine::policy::{Listed, Pattern, Policy, Provenance};

/// The second process of a scenario.
const OTHER: &str = env!("CARGO_BIN_EXE_other-process");

/// Runs `work` on so many threads, each with numbers of its own, again and again until `meanwhile` is over. All threads have
/// been at work once before `meanwhile` begins. Says how often `work` ran.
fn hammer(threads: u64, work: impl Fn(u64) + Sync, meanwhile: impl FnOnce()) -> u64 {
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

/// Which round is in force: `done` is the last that has been put in force, `begun` the last that may be.
#[derive(Default)]
struct Rounds {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Rounds {
    /// Puts a round in force.
    fn enter(&self, round: u64, change: impl FnOnce()) {
        self.begun.store(round, Ordering::SeqCst);
        change();
        self.done.store(round, Ordering::SeqCst);
    }

    /// Makes a call and says in which rounds its answer may have been made.
    fn during<T>(&self, call: impl FnOnce() -> T) -> (T, std::ops::RangeInclusive<u64>) {
        let before = self.done.load(Ordering::SeqCst);
        let answer = call();
        (answer, before..=self.begun.load(Ordering::SeqCst))
    }
}

/// A policy that allows these kernels or backends only.
fn only(pattern: &str) -> Policy {
    let listed = Listed {
        kernels: Pattern::new(pattern),
        operations: Pattern::any(),
        source: Provenance::new("layerzero.yaml:1"),
    };
    Policy { allow: vec![listed], ..Policy::default() }
}
