//! What belongs to a thread stays with it; what is shared survives threads that end, nest and panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use lz_core::KernelSpec;
use lz_engine::Engine;
use lz_engine::mode::{self, Ask as Asked, ModeChange};
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Ask, Norm};
use lz_scenarios::house::{host_house, host_spec, register};
use lz_scenarios::kernels::{doing, quiet};

use super::{hammer, only};

fn two() -> Engine {
    let safe = KernelSpec { deterministic: true, cuda_graph_safe: true, ..host_spec("safe.x") };
    host_house([host_spec("fast.x").priority(90), safe])
}

/// Half of the threads ask for determinism, half do not, all at once on one engine: no thread's wish leaks into another.
#[test]
fn a_threads_mode_is_its_own() {
    let engine = two();
    let start = Barrier::new(16);
    thread::scope(|scope| {
        for number in 0..16 {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                let wants = number % 2 == 0;
                let _mode = mode::scope(ModeChange::NONE.set(Asked::Deterministic, wants));
                for _ in 0..500 {
                    let expected = if wants { "safe.x" } else { "fast.x" };
                    assert_eq!(Norm::default().serve(engine).unwrap(), expected);
                }
            });
        }
    });
}

/// One thread captures a graph while others serve: only the one that captures is kept to safe kernels.
#[test]
fn a_capture_on_one_thread_leaves_the_others_alone() {
    let engine = two();
    let (captured, begun) = mpsc::channel();
    thread::scope(|scope| {
        let engine = &engine;
        let capturing = scope.spawn(move || {
            let _capture = mode::scope(ModeChange::NONE.set(Asked::Capturing, true));
            captured.send(()).unwrap();
            (0..500).for_each(|_| assert_eq!(Norm::default().serve(engine).unwrap(), "safe.x"));
        });
        begun.recv().unwrap();
        (0..500).for_each(|_| assert_eq!(Norm::default().serve(engine).unwrap(), "fast.x"));
        capturing.join().unwrap();
    });
}

/// A panic unwinds through a block with a mode of its own: the mode ends with the block, on every thread.
#[test]
fn a_mode_ends_with_its_block_even_by_a_panic() {
    let engine = two();
    hammer(
        8,
        |_| {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let _mode = mode::scope(ModeChange::NONE.set(Asked::Deterministic, true));
                assert_eq!(Norm::default().serve(&engine).unwrap(), "safe.x");
                std::panic::resume_unwind(Box::new("the request was cancelled"));
            }));
            assert!(outcome.is_err());
            assert_eq!(Norm::default().serve(&engine).unwrap(), "fast.x");
        },
        || (0..50).for_each(|_| drop(Norm::default().explain(&engine))),
    );
}

/// One thread serves four engines in turn, as a test suite or a multi-tenant server does: what it remembers of one is never used for another.
#[test]
fn a_thread_may_serve_several_engines() {
    let engines: Vec<Engine> =
        (0..4).map(|number| host_house([host_spec(&format!("k{number}.x"))])).collect();
    thread::scope(|scope| {
        for offset in 0..8 {
            let engines = &engines;
            scope.spawn(move || {
                for turn in 0..1000 {
                    let number = (turn + offset) % 4;
                    assert_eq!(Norm::default().serve(&engines[number]).unwrap(), format!("k{number}.x"));
                }
            });
        }
    });
}

/// Five hundred threads live for one call each: each is served, and what they leave behind is one cached decision.
#[test]
fn threads_of_one_call_are_served() {
    let engine = two();
    for _ in 0..50 {
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| assert_eq!(Norm::default().serve(&engine).unwrap(), "fast.x"));
            }
        });
    }
    assert_eq!(engine.cached_decisions(), 1);
}

/// A thread calls the engine while it is ending, from a destructor: the call is served like any other.
#[test]
fn a_call_from_a_thread_that_is_ending_is_served() {
    struct Last(Engine, Arc<Mutex<Vec<String>>>);
    impl Drop for Last {
        fn drop(&mut self) {
            let who = Norm::default().serve(&self.0).unwrap_or_else(|error| error.to_string());
            self.1.lock().unwrap().push(who);
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    let engine = two();
    let served = Arc::new(Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope
                .spawn(|| {
                    LAST.with(|last| *last.borrow_mut() = Some(Last(engine.clone(), Arc::clone(&served))));
                    assert_eq!(Norm::default().serve(&engine).unwrap(), "fast.x");
                })
                .join()
                .unwrap();
        }
    });
    // A scope waits for its threads' work, not for their destructors; their own handles do.
    assert_eq!(*served.lock().unwrap(), ["fast.x"; 4]);
}

/// The last handle of an engine is dropped while one of its kernels runs on another thread: the call ends well.
#[test]
fn an_engine_may_be_dropped_while_it_serves() {
    let ((running, begun), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let released = Mutex::new(released);
    let engine = Engine::new();
    register(
        &engine,
        [doing(host_spec("slow.x"), &NORM_RMS, move || {
            running.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
            Ok(())
        })],
    );
    let other = engine.clone();
    let serving = thread::spawn(move || Norm::default().serve(&other).unwrap());
    begun.recv().unwrap();
    drop(engine);
    release.send(()).unwrap();
    assert_eq!(serving.join().unwrap(), "slow.x");
}

/// A kernel calls the engine from inside of itself, three deep, on eight threads: each level is served and none disturbs another.
#[test]
fn a_kernel_may_call_the_engine() {
    thread_local! {
        static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let engine = Engine::new();
    let inner = engine.clone();
    let nested = doing(host_spec("nested.x").priority(90), &NORM_RMS, move || {
        let depth = DEPTH.get();
        if depth < 3 {
            DEPTH.set(depth + 1);
            assert_eq!(Norm::rows(i64::from(depth) * 100).serve(&inner).unwrap(), "nested.x");
            DEPTH.set(depth);
        }
        Ok(())
    });
    register(&engine, [nested]);
    hammer(
        8,
        |_| assert_eq!(Norm::default().serve(&engine).unwrap(), "nested.x"),
        || {
            (0..20).for_each(|_| assert_eq!(Norm::default().serve(&engine).unwrap(), "nested.x"));
        },
    );
}

/// A kernel changes the policy in the middle of its own call, on several threads: no deadlock, and the next call follows the new policy.
#[test]
fn a_kernel_may_change_the_policy_during_its_call() {
    let engine = Engine::new();
    let (inner, turns) = (engine.clone(), AtomicU64::new(0));
    let changing = doing(host_spec("changing.x").priority(90), &NORM_RMS, move || {
        let turn = turns.fetch_add(1, Ordering::SeqCst);
        inner.set_policy(only(if turn % 2 == 0 { "*" } else { "changing" }));
        Ok(())
    });
    register(&engine, [changing, quiet(host_spec("plain.x"), &NORM_RMS)]);
    hammer(
        8,
        |_| assert_eq!(Norm::default().serve(&engine).unwrap(), "changing.x"),
        || {
            (0..50).for_each(|_| assert_eq!(Norm::default().serve(&engine).unwrap(), "changing.x"));
        },
    );
    engine.set_policy(only("plain"));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "plain.x");
}

/// A kernel removes its own backend while it runs: its call ends well, and the next one goes to another kernel.
#[test]
fn a_kernel_may_remove_itself_during_its_call() {
    let engine = Engine::new();
    let inner = engine.clone();
    let leaving = doing(host_spec("leaving.x").priority(90), &NORM_RMS, move || {
        inner.unregister_backend("leaving");
        Ok(())
    });
    register(&engine, [leaving, quiet(host_spec("staying.x"), &NORM_RMS)]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "leaving.x");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "staying.x");
    assert_eq!(engine.registry().kernels().count(), 1);
}

/// A kernel spreads its work over threads that call the engine themselves: all are served while the outer call is open.
#[test]
fn a_kernels_own_threads_may_call_the_engine() {
    let engine = Engine::new();
    let (inner, served) = (engine.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&served);
    let spreading = doing(
        host_spec("spreading.x").priority(90).limit("rows <= 4", lz_core::ReasonCode::AxisLimit),
        &NORM_RMS,
        move || {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        assert_eq!(Norm::rows(5).serve(&inner).unwrap(), "plain.x");
                        count.fetch_add(1, Ordering::SeqCst);
                    });
                }
            });
            Ok(())
        },
    );
    register(&engine, [spreading, quiet(host_spec("plain.x"), &NORM_RMS)]);
    assert_eq!(Norm::rows(4).serve(&engine).unwrap(), "spreading.x");
    assert_eq!(served.load(Ordering::SeqCst), 4);
}

/// Handles of one engine are cloned into eight threads: they share one cache, and a change by one is seen by all.
#[test]
fn clones_are_the_same_engine() {
    let engine = two();
    let (start, changed) = (Barrier::new(8), Barrier::new(8));
    thread::scope(|scope| {
        for number in 0..8 {
            let (mine, start, changed) = (engine.clone(), &start, &changed);
            scope.spawn(move || {
                assert_eq!(Norm::default().serve(&mine).unwrap(), "fast.x");
                start.wait();
                if number == 0 {
                    mine.set_policy(only("safe"));
                }
                changed.wait();
                assert_eq!(Norm::default().serve(&mine).unwrap(), "safe.x");
            });
        }
    });
    assert_eq!(engine.cached_decisions(), 1);
}
