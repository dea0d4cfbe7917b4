//! Thread-local state stays local; shared state survives threads that exit, nest calls and panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use lz_core::KernelSpec;
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag as Asked, ModeOverride};
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{host_engine, host_spec, register};
use lz_scenarios::kernels::{kernel_fn, noop_kernel};

use super::{only, run_concurrently};

fn fast_and_safe_kernels() -> Engine {
    let safe = KernelSpec { deterministic: true, cuda_graph_safe: true, ..host_spec("safe.x") };
    host_engine([host_spec("fast.x").priority(90), safe])
}

/// Half of the threads require determinism, the others do not, on one engine at the same time: modes do not
/// leak between threads.
#[test]
fn modes_are_per_thread() {
    let engine = fast_and_safe_kernels();
    let start = Barrier::new(16);
    thread::scope(|scope| {
        for number in 0..16 {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                let wants = number % 2 == 0;
                let _mode = mode::scope(ModeOverride::NONE.set(Asked::Deterministic, wants));
                for _ in 0..500 {
                    let expected = if wants { "safe.x" } else { "fast.x" };
                    assert_eq!(Norm::default().serve(engine).unwrap(), expected);
                }
            });
        }
    });
}

/// One thread captures a graph while others serve: only the capturing thread is restricted to capture-safe
/// kernels.
#[test]
fn a_capture_restricts_only_its_own_thread() {
    let engine = fast_and_safe_kernels();
    let (captured, begun) = mpsc::channel();
    thread::scope(|scope| {
        let engine = &engine;
        let capturing = scope.spawn(move || {
            let _capture = mode::scope(ModeOverride::NONE.set(Asked::Capturing, true));
            captured.send(()).unwrap();
            (0..500).for_each(|_| assert_eq!(Norm::default().serve(engine).unwrap(), "safe.x"));
        });
        begun.recv().unwrap();
        (0..500).for_each(|_| assert_eq!(Norm::default().serve(engine).unwrap(), "fast.x"));
        capturing.join().unwrap();
    });
}

/// A panic unwinds through a mode scope: the mode ends with the scope, on every thread.
#[test]
fn a_mode_ends_with_its_scope_on_panic() {
    let engine = fast_and_safe_kernels();
    run_concurrently(
        8,
        |_| {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let _mode = mode::scope(ModeOverride::NONE.set(Asked::Deterministic, true));
                assert_eq!(Norm::default().serve(&engine).unwrap(), "safe.x");
                std::panic::resume_unwind(Box::new("the request was cancelled"));
            }));
            assert!(outcome.is_err());
            assert_eq!(Norm::default().serve(&engine).unwrap(), "fast.x");
        },
        || (0..50).for_each(|_| drop(Norm::default().explain(&engine))),
    );
}

/// One thread alternates between four engines, as a multi-tenant server does: its thread-local cache never
/// mixes them.
#[test]
fn a_thread_may_use_several_engines() {
    let engines: Vec<Engine> =
        (0..4).map(|number| host_engine([host_spec(&format!("k{number}.x"))])).collect();
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

/// 500 threads make one call each: each is served, and one decision is cached.
#[test]
fn short_lived_threads_are_served() {
    let engine = fast_and_safe_kernels();
    for _ in 0..50 {
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| assert_eq!(Norm::default().serve(&engine).unwrap(), "fast.x"));
            }
        });
    }
    assert_eq!(engine.cached_decisions(), 1);
}

/// A thread-local destructor calls the engine while its thread exits: the call is served.
#[test]
fn a_call_from_an_exiting_thread_is_served() {
    struct CallOnDrop(Engine, Arc<Mutex<Vec<String>>>);
    impl Drop for CallOnDrop {
        fn drop(&mut self) {
            let kernel = Norm::default().serve(&self.0).unwrap_or_else(|error| error.to_string());
            self.1.lock().unwrap().push(kernel);
        }
    }
    thread_local! {
        static CALL_ON_DROP: std::cell::RefCell<Option<CallOnDrop>> = const { std::cell::RefCell::new(None) };
    }
    let engine = fast_and_safe_kernels();
    let served = Arc::new(Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope
                .spawn(|| {
                    CALL_ON_DROP.with(|last| {
                        *last.borrow_mut() = Some(CallOnDrop(engine.clone(), Arc::clone(&served)))
                    });
                    assert_eq!(Norm::default().serve(&engine).unwrap(), "fast.x");
                })
                .join()
                .unwrap();
        }
    });
    // A scope waits for the threads' closures, not for thread-local destructors; joining the handles does.
    assert_eq!(*served.lock().unwrap(), ["fast.x"; 4]);
}

/// The last handle of an engine is dropped while one of its kernels runs on another thread: the call
/// completes.
#[test]
fn an_engine_may_be_dropped_during_a_call() {
    let ((running, begun), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let released = Mutex::new(released);
    let engine = Engine::new();
    register(
        &engine,
        [kernel_fn(host_spec("slow.x"), &NORM_RMS, move || {
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

/// A kernel calls the engine recursively, three levels deep, on eight threads: each level is served.
#[test]
fn a_kernel_may_call_the_engine() {
    thread_local! {
        static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let engine = Engine::new();
    let inner = engine.clone();
    let nested = kernel_fn(host_spec("nested.x").priority(90), &NORM_RMS, move || {
        let depth = DEPTH.get();
        if depth < 3 {
            DEPTH.set(depth + 1);
            assert_eq!(Norm::rows(i64::from(depth) * 100).serve(&inner).unwrap(), "nested.x");
            DEPTH.set(depth);
        }
        Ok(())
    });
    register(&engine, [nested]);
    run_concurrently(
        8,
        |_| assert_eq!(Norm::default().serve(&engine).unwrap(), "nested.x"),
        || {
            (0..20).for_each(|_| assert_eq!(Norm::default().serve(&engine).unwrap(), "nested.x"));
        },
    );
}

/// A kernel changes the policy during its own call, on several threads: no deadlock, and the next call
/// follows the new policy.
#[test]
fn a_kernel_may_change_the_policy_during_its_call() {
    let engine = Engine::new();
    let (inner, turns) = (engine.clone(), AtomicU64::new(0));
    let changing = kernel_fn(host_spec("changing.x").priority(90), &NORM_RMS, move || {
        let turn = turns.fetch_add(1, Ordering::SeqCst);
        inner.set_policy(only(if turn % 2 == 0 { "*" } else { "changing" }));
        Ok(())
    });
    register(&engine, [changing, noop_kernel(host_spec("plain.x"), &NORM_RMS)]);
    run_concurrently(
        8,
        |_| assert_eq!(Norm::default().serve(&engine).unwrap(), "changing.x"),
        || {
            (0..50).for_each(|_| assert_eq!(Norm::default().serve(&engine).unwrap(), "changing.x"));
        },
    );
    engine.set_policy(only("plain"));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "plain.x");
}

/// A kernel unregisters its own backend while it runs: its call completes, and the next one runs another
/// kernel.
#[test]
fn a_kernel_may_unregister_itself_during_its_call() {
    let engine = Engine::new();
    let inner = engine.clone();
    let leaving = kernel_fn(host_spec("leaving.x").priority(90), &NORM_RMS, move || {
        inner.unregister_backend("leaving");
        Ok(())
    });
    register(&engine, [leaving, noop_kernel(host_spec("staying.x"), &NORM_RMS)]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "leaving.x");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "staying.x");
    assert_eq!(engine.registry().kernels().count(), 1);
}

/// A kernel spawns threads that call the engine: all are served while the outer call is running.
#[test]
fn threads_spawned_by_a_kernel_may_call_the_engine() {
    let engine = Engine::new();
    let (inner, served) = (engine.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&served);
    let spreading = kernel_fn(
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
    register(&engine, [spreading, noop_kernel(host_spec("plain.x"), &NORM_RMS)]);
    assert_eq!(Norm::rows(4).serve(&engine).unwrap(), "spreading.x");
    assert_eq!(served.load(Ordering::SeqCst), 4);
}

/// Handles of one engine are cloned into eight threads: they share one cache, and a change through one is
/// visible to all.
#[test]
fn clones_are_the_same_engine() {
    let engine = fast_and_safe_kernels();
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
