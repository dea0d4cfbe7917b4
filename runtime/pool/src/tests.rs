//! Tests the thread pool under concurrency. The thread count is global to the process, so each test sets its
//! own limit.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn visits(tasks: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    for_each(tasks, &|task| {
        counts[task].fetch_add(1, Ordering::Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn each_task_runs_once_for_any_number_of_threads() {
    set_threads(4);
    for tasks in [0, 1, 2, 3, 100, 10_000] {
        for threads in 1..=4 {
            assert!(with_threads(threads, || visits(tasks)).into_iter().all(|count| count == 1));
        }
    }
}

#[test]
fn concurrent_callers_do_not_block_each_other() {
    set_threads(4);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..200).for_each(|_| assert!(visits(37).into_iter().all(|count| count == 1))));
        }
    });
}

#[test]
fn nested_call_stays_on_its_thread() {
    set_threads(4);
    for_each(8, &|_| {
        assert_eq!(threads(), 1);
        let own = std::thread::current().id();
        let seen = Mutex::new(HashSet::new());
        for_each(16, &|_| {
            lock(&seen).insert(std::thread::current().id());
        });
        assert_eq!(*lock(&seen), HashSet::from([own]));
    });
}

#[test]
fn nested_call_stays_on_its_thread_when_the_pool_is_busy() {
    set_threads(4);
    let guard = lock(&super::pool().exclusive);
    let seen = Mutex::new(HashSet::new());
    let body = |_| {
        assert_eq!(threads(), 1);
        lock(&seen).insert(std::thread::current().id());
    };
    for_each(8, &body);
    assert_eq!(*lock(&seen), HashSet::from([std::thread::current().id()]));
    assert_eq!(threads(), 4);
    drop(guard);
}

#[test]
fn panic_reaches_the_caller_and_the_pool_keeps_working() {
    set_threads(4);
    for round in 0..20 {
        let outcome = catch_unwind(|| {
            for_each(64, &|task| assert!(task != round * 3, "task {task}"));
        });
        let message = outcome.expect_err("one task panics").downcast::<String>().map(|text| *text);
        assert_eq!(message.ok(), Some(format!("task {}", round * 3)));
        assert!(visits(64).into_iter().all(|count| count == 1));
    }
    // Other tests may be using the pool, but not permanently.
    let served = || run_shared(8, 2, &|_| {});
    assert!(
        (0..100_000).any(|_| served() || {
            std::thread::yield_now();
            false
        }),
        "the pool no longer accepts jobs"
    );
}

#[test]
fn thread_limit_ends_with_its_scope() {
    set_threads(4);
    let outside = threads();
    assert_eq!(with_threads(1, threads), 1);
    assert!(catch_unwind(|| with_threads(1, || panic!("inside"))).is_err());
    assert_eq!(threads(), outside);
}

#[cfg(unix)]
#[test]
fn forked_child_creates_its_own_pool() {
    set_threads(4);
    assert!(visits(100).into_iter().all(|count| count == 1));
    // SAFETY: the child only computes, and leaves without running destructors of the parent.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let whole = (0..50).all(|_| visits(100).into_iter().all(|count| count == 1));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if whole { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
}
