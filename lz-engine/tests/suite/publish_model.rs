//! The publishing of new states, explored in every order that the memory model allows. The file under test is the real one.

use std::sync::Arc;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// What `lz-engine/src/selection/sync.rs` gives to the engine, for the explorer.
mod sync {
    pub(crate) use std::sync::Arc;

    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug)]
    pub(crate) struct Place<T>(loom::sync::Mutex<Arc<T>>);

    impl<T> Place<T> {
        pub fn new(first: Arc<T>) -> Place<T> {
            Place(loom::sync::Mutex::new(first))
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

/// A state that knows its number twice: as a number, and as what decisions under it would say.
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

/// What a thread does before it uses the state that it holds: the same three lines as in `engine/inline.rs`.
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

/// Once a change is over, nobody decides by an older state, however long they have held one.
#[test]
fn no_decision_outlives_a_change() {
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

/// What is announced is in place: whoever sees the number finds that state or a later one.
#[test]
fn the_number_is_never_ahead_of_the_state() {
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

/// States never go back: two looks of one thread see numbers that do not fall.
#[test]
fn a_thread_never_sees_the_past() {
    explore(|| {
        let published = Arc::new(Published::new(state(1)));
        let writers = Arc::new(loom::sync::Mutex::new(2u64));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (published, writers) = (Arc::clone(&published), Arc::clone(&writers));
                thread::spawn(move || {
                    // As the engine does: one at a time, numbers in the order of taking the lock.
                    let mut next = writers.lock().expect("nobody panics with the lock");
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
