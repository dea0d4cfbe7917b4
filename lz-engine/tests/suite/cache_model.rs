//! Model-checks the decision cache, the exact cache and plan handles in every order that the memory model allows, with few
//! preemptions. The files under test are the real ones.
//!
//! Each property is also checked with a seeded bug, under which the model must fail: a property that always holds proves nothing.

use std::sync::Arc;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// The primitives of `lz-engine/src/selection/sync.rs` for the model checker. `$published` is the ordering with which a filled slot
/// is read, and `$add` adds to a counter.
macro_rules! primitives {
    ($published:expr, $add:expr) => {
        mod sync {
            use std::sync::atomic::Ordering as Order;

            use loom::cell::UnsafeCell;
            pub(crate) use loom::sync::atomic::Ordering;
            use loom::thread;

            const EMPTY: usize = 0;
            const FILLING: usize = 1;
            const FILLED: usize = 2;

            /// As `std::sync::OnceLock`: `set` waits for another thread that is filling it.
            #[derive(Debug)]
            pub(crate) struct OnceLock<T> {
                state: loom::sync::atomic::AtomicUsize,
                value: UnsafeCell<Option<T>>,
            }

            impl<T> OnceLock<T> {
                pub fn new() -> OnceLock<T> {
                    let state = loom::sync::atomic::AtomicUsize::new(EMPTY);
                    OnceLock { state, value: UnsafeCell::new(None) }
                }

                pub fn get(&self) -> Option<&T> {
                    if self.state.load($published) != FILLED {
                        return None;
                    }
                    // SAFETY: a filled slot is never written again.
                    self.value.with(|value| unsafe { (*value).as_ref() })
                }

                pub fn set(&self, value: T) -> Result<(), T> {
                    if let Err(mut state) =
                        self.state.compare_exchange(EMPTY, FILLING, Order::Acquire, Order::Acquire)
                    {
                        while state != FILLED {
                            thread::yield_now();
                            state = self.state.load(Order::Acquire);
                        }
                        return Err(value);
                    }
                    // SAFETY: only the thread that changed the state to `FILLING` writes.
                    self.value.with_mut(|slot| unsafe { *slot = Some(value) });
                    self.state.store(FILLED, Order::Release);
                    Ok(())
                }
            }

            #[derive(Debug)]
            pub(crate) struct AtomicUsize(loom::sync::atomic::AtomicUsize);

            impl AtomicUsize {
                pub fn new(value: usize) -> AtomicUsize {
                    AtomicUsize(loom::sync::atomic::AtomicUsize::new(value))
                }

                pub fn load(&self, order: Ordering) -> usize {
                    self.0.load(order)
                }

                pub fn fetch_add(&self, count: usize, order: Ordering) -> usize {
                    $add(&self.0, count, order)
                }

                pub fn fetch_sub(&self, count: usize, order: Ordering) -> usize {
                    self.0.fetch_sub(count, order)
                }
            }
        }
    };
}

type Counter = loom::sync::atomic::AtomicUsize;

fn atomic_add(counter: &Counter, count: usize, order: Ordering) -> usize {
    counter.fetch_add(count, order)
}

/// A seeded bug: another thread may count between the read and the write.
fn torn_add(counter: &Counter, count: usize, order: Ordering) -> usize {
    let before = counter.load(order);
    counter.store(before + count, order);
    before
}

mod miscounting;
mod real;
mod unordered;

fn explore(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// Whether the model finds a failure.
fn fails(check: impl Fn() + Sync + Send + 'static + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(|| explore(check)).is_err()
}

/// Two threads insert entries into a table, which the main thread reads meanwhile. `$same`: both insert the same one.
macro_rules! table_model {
    ($name:ident, $capacity:expr, $entries:expr) => {
        || {
            let table = Arc::new($name::slot_table::SlotTable::<[u64; 2]>::new($capacity));
            let entries: [u64; 2] = $entries;
            let threads = entries.map(|entry| {
                let table = Arc::clone(&table);
                // One hash, so that all entries have the same probe sequence.
                thread::spawn(move || {
                    let same = |there: &[u64; 2], entry: &[u64; 2]| there == entry;
                    table.insert(5, || [entry, 100 + entry], same).copied()
                })
            });
            let found = |entry: u64| table.find(5, |there| there[0] == entry).copied();
            for entry in entries {
                // A reader finds the whole entry or none.
                assert!(found(entry).is_none_or(|there| there == [entry, 100 + entry]));
            }
            let inserted = threads.map(|thread| thread.join().expect("no thread panics"));
            let distinct = if entries[0] == entries[1] { 1 } else { 2 };
            assert!(table.len() <= $capacity);
            for (entry, inserted) in entries.into_iter().zip(inserted) {
                // What `insert` returned is what is found from now on; nothing is inserted twice or lost.
                assert_eq!(inserted, found(entry));
                assert!(inserted.is_none_or(|there| there == [entry, 100 + entry]));
            }
            let count = entries.into_iter().filter(|entry| found(*entry).is_some()).count();
            assert!(count >= 1 && (distinct > $capacity || count == 2));
            assert!(distinct <= $capacity || count == $capacity, "more entries than the capacity");
        }
    };
}

#[test]
fn entries_are_inserted_once_and_read_whole() {
    explore(table_model!(real, 3, [1, 2]));
    explore(table_model!(real, 3, [1, 1]));
}

#[test]
fn a_full_table_takes_no_more_entries() {
    explore(table_model!(real, 1, [1, 2]));
}

#[test]
fn the_model_notices_entries_that_are_read_too_early() {
    assert!(fails(table_model!(unordered, 3, [1, 2])));
}

#[test]
fn the_model_notices_a_count_that_is_not_atomic() {
    assert!(fails(table_model!(miscounting, 1, [1, 2])));
}

macro_rules! exact_model {
    ($name:ident) => {
        || {
            let cache = Arc::new($name::exact_cache::ExactCache::new(2));
            let decision = |kernel: u32| $name::exact_cache::CachedDecision {
                workspace: 100 + u64::from(kernel),
                kernel,
                transforms: lz_core::plan::Transforms::NONE,
            };
            // Three calls whose hashes lead to the same two slots.
            let threads = [1u64, 2].map(|call| {
                let cache = Arc::clone(&cache);
                thread::spawn(move || cache.insert(1 << 32, 7, &[call], decision(call as u32)))
            });
            let found =
                |call: u64| cache.find(1 << 32, 7, &[call]).map(|there| (there.kernel, there.workspace));
            for call in [1u64, 2, 3] {
                let own = (call as u32, 100 + call);
                assert!(found(call).is_none_or(|there| there == own), "the decision of another call");
            }
            for thread in threads {
                thread.join().expect("no thread panics");
            }
            cache.insert(1 << 32, 7, &[3], decision(3));
            let count = [1, 2, 3].into_iter().filter(|call| found(*call).is_some()).count();
            assert!((1..=2).contains(&count));
        }
    };
}

#[test]
fn exact_calls_get_their_own_decision_or_none() {
    explore(exact_model!(real));
}

#[test]
fn the_model_notices_decisions_that_are_read_too_early() {
    assert!(fails(exact_model!(unordered)));
}

/// The primitives of plan handles and thread caches.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../../src/selection/checked_generation.rs"]
mod checked_generation;

use checked_generation::CheckedGeneration;

/// Snapshots are published by number; the kernel of the plan handle is allowed only in odd ones.
fn allowed(generation: u64) -> bool {
    generation % 2 == 1
}

/// Two threads run a plan handle while the policy changes. `record` decides which generation a check counts for.
fn plan_model(record: fn(checked: u64, published: u64) -> u64) -> impl Fn() + Sync + Send + 'static {
    move || {
        let published = Arc::new(AtomicU64::new(1));
        let handle = Arc::new(CheckedGeneration::new(None));
        let run = move |published: &AtomicU64, handle: &CheckedGeneration| {
            let number = published.load(Ordering::Acquire);
            if handle.is(number) {
                assert!(allowed(number), "a kernel that policy denies ran");
                return;
            }
            let snapshot = published.load(Ordering::Acquire);
            if allowed(snapshot) {
                handle.record(record(snapshot, published.load(Ordering::Acquire)));
            }
        };
        let writer = {
            let published = Arc::clone(&published);
            thread::spawn(move || published.store(2, Ordering::Release))
        };
        let other = {
            let (published, handle) = (Arc::clone(&published), Arc::clone(&handle));
            thread::spawn(move || run(&published, &handle))
        };
        run(&published, &handle);
        run(&published, &handle);
        writer.join().expect("the writer does not panic");
        other.join().expect("no thread panics");
        assert!(!handle.is(2), "generation 2 denies the kernel");
    }
}

#[test]
fn a_plan_handle_never_runs_a_kernel_unchecked() {
    explore(plan_model(|checked, _| checked));
}

#[test]
fn the_model_notices_a_check_that_counts_for_a_later_snapshot() {
    assert!(fails(plan_model(|_, published| published)));
}
