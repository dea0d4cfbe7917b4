//! Model-checks the publishing of snapshots in every order that the memory model allows. The file under test is the real one.

use std::sync::Arc;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// The replacement of `lz-engine/src/selection/sync.rs` for the model checker.
mod sync {
    pub(crate) use std::sync::Arc;

    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug)]
    pub(crate) struct ArcCell<T>(loom::sync::Mutex<Arc<T>>);

    impl<T> ArcCell<T> {
        pub fn new(first: Arc<T>) -> ArcCell<T> {
            ArcCell(loom::sync::Mutex::new(first))
        }

        pub fn load_full(&self) -> Arc<T> {
            match self.0.lock() {
                Ok(place) => Arc::clone(&place),
                Err(poison) => Arc::clone(&poison.into_inner()),
            }
        }

        pub fn store(&self, next: Arc<T>) {
            match self.0.lock() {
                Ok(mut place) => *place = next,
                Err(poison) => *poison.into_inner() = next,
            }
        }
    }
}

#[path = "../../src/selection/publish.rs"]
mod publish;

use publish::{Numbered, Published};

/// A value that contains its number twice: as its number, and as the content that decisions would use.
#[derive(Debug)]
struct State {
    number: u64,
    answer: u64,
}

impl Numbered for State {
    fn number(&self) -> u64 {
        self.number
    }
}

fn state(number: u64) -> Arc<State> {
    Arc::new(State { number, answer: 100 + number })
}

/// What a thread does before it uses its held snapshot: the same three lines as in `engine/inline.rs`.
fn refresh(published: &Published<State>, held: &mut Option<Arc<State>>) {
    if held.as_ref().is_none_or(|state| state.number != published.number()) {
        *held = Some(published.load());
    }
}

fn explore(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(check);
}

/// After a change has been published, no thread decides under an older value, however long it has held one.
#[test]
fn no_decision_is_stale_after_a_change() {
    explore(|| {
        let published = Arc::new(Published::new(state(1)));
        let over = Arc::new(AtomicU64::new(1));
        let writer = {
            let (published, over) = (Arc::clone(&published), Arc::clone(&over));
            thread::spawn(move || {
                for number in [2, 3] {
                    published.replace(state(number));
                    over.store(number, Ordering::Release);
                }
            })
        };
        let mut held = None;
        refresh(&published, &mut held);
        for _ in 0..2 {
            let over = over.load(Ordering::Acquire);
            refresh(&published, &mut held);
            let state = held.as_ref().expect("refreshing fills it");
            assert!(state.number >= over, "decided under {} after {over} was in force", state.number);
            assert_eq!(state.answer, 100 + state.number);
        }
        writer.join().expect("the writer does not panic");
    });
}

/// The value is stored before its number: a reader that sees the number loads that value or a later one.
#[test]
fn published_number_is_never_ahead_of_the_value() {
    explore(|| {
        let published = Arc::new(Published::new(state(1)));
        let writer = {
            let published = Arc::clone(&published);
            thread::spawn(move || published.replace(state(2)))
        };
        let number = published.number();
        assert!(published.load().number >= number);
        writer.join().expect("the writer does not panic");
        assert_eq!((published.number(), published.load().number), (2, 2));
    });
}

/// Values never go back: two reads of one thread see non-decreasing numbers.
#[test]
fn published_values_never_go_back() {
    explore(|| {
        let published = Arc::new(Published::new(state(1)));
        let writers = Arc::new(loom::sync::Mutex::new(2u64));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (published, writers) = (Arc::clone(&published), Arc::clone(&writers));
                thread::spawn(move || {
                    // As in the engine: one writer at a time, numbers in lock order.
                    let mut next = writers.lock().expect("no thread panics while it holds the lock");
                    published.replace(state(*next));
                    *next += 1;
                })
            })
            .collect();
        let mut held = None;
        let mut last = 0;
        for _ in 0..2 {
            refresh(&published, &mut held);
            let number = held.as_ref().map_or(0, |state| state.number);
            assert!(number >= last);
            last = number;
        }
        for thread in threads {
            thread.join().expect("no writer panics");
        }
        refresh(&published, &mut held);
        assert_eq!(held.map(|state| state.number), Some(3));
    });
}

/// The same values without a published number: each thread keeps what it loaded first.
fn keep_first(published: &Published<State>, held: &mut Option<Arc<State>>) {
    if held.is_none() {
        *held = Some(published.load());
    }
}

/// A cache entry of a thread: the decision and the generation under which it was made. `key` is the generation that it is stored with.
fn thread_cache_model(
    refresh: fn(&Published<State>, &mut Option<Arc<State>>),
    key: fn(held: u64, published: u64) -> u64,
) -> impl Fn() + Sync + Send + 'static {
    move || {
        let published = Arc::new(Published::new(state(1)));
        let over = Arc::new(AtomicU64::new(1));
        let writer = {
            let (published, over) = (Arc::clone(&published), Arc::clone(&over));
            thread::spawn(move || {
                published.replace(state(2));
                over.store(2, Ordering::Release);
            })
        };
        let (mut held, mut entry) = (None, (0, 0));
        for _ in 0..3 {
            let over = over.load(Ordering::Acquire);
            let number = published.number();
            if entry.0 != number {
                refresh(&published, &mut held);
                let state = held.as_ref().expect("refreshing fills it");
                entry = (key(state.number, published.number()), state.answer);
            }
            assert!(entry.1 >= 100 + over, "a decision of an older snapshot");
        }
        writer.join().expect("the writer does not panic");
    }
}

/// An entry of a thread cache answers only under the snapshot it was made under.
#[test]
fn thread_caches_never_answer_for_another_snapshot() {
    explore(thread_cache_model(refresh, |held, _| held));
}

/// Seeded bugs: the model fails if a thread does not look at the published number, or keys an entry by a later one.
#[test]
fn the_model_notices_stale_thread_caches() {
    let fails = |check: Box<dyn Fn() + Sync + Send>| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| explore(check))).is_err()
    };
    assert!(fails(Box::new(thread_cache_model(keep_first, |held, _| held))));
    assert!(fails(Box::new(thread_cache_model(refresh, |_, published| published))));
}
