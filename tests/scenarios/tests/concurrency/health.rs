//! Failures on many threads at once: counted correctly, probed a limited number of times, and no call fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lz_core::KernelError;
use lz_engine::Engine;
use lz_engine::health::{Health, HealthConfig, ManualClock};
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{host_spec, register};
use lz_scenarios::kernels::{kernel_fn, noop_kernel};

use super::run_concurrently;

fn engine_with_manual_clock() -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::starting_at(2_000_000_000));
    let engine = Engine::with_health(Arc::new(Health::new(HealthConfig::default(), clock.clone())));
    register(&engine, [noop_kernel(host_spec("good.x"), &NORM_RMS)]);
    (engine, clock)
}

/// A kernel fails on 64 threads at once: its circuit opens once, every call is served, and afterwards the
/// kernel is not called again.
#[test]
fn a_circuit_opens_once_under_many_threads() {
    let (engine, _) = engine_with_manual_clock();
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    register(
        &engine,
        [kernel_fn(host_spec("bad.x").priority(90), &NORM_RMS, move || {
            count.fetch_add(1, Ordering::SeqCst);
            Err(KernelError::failed("a launch failure"))
        })],
    );
    let round = || {
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    (0..20).for_each(|_| assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x"))
                });
            }
        });
        (calls.load(Ordering::SeqCst), engine.health().summary().counters.openings)
    };
    let (called, openings) = round();
    // Five failures open the circuit; calls already inside the kernel still fail afterwards.
    assert!((5..=4 + 64).contains(&called), "{called}");
    assert_eq!(openings, 1);
    assert_eq!(round(), (called, 1));
}

/// The probe time comes while 64 threads call: exactly three of them probe, the others are served by another
/// kernel without waiting.
#[test]
fn exactly_three_threads_probe() {
    let (engine, clock) = engine_with_manual_clock();
    let broken = Arc::new(AtomicU64::new(1));
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let inside = Arc::new(AtomicU64::new(0));
    let (is_broken, hold, count) = (Arc::clone(&broken), Arc::clone(&gate), Arc::clone(&inside));
    register(
        &engine,
        [kernel_fn(host_spec("probed.x").priority(90), &NORM_RMS, move || {
            if is_broken.load(Ordering::SeqCst) == 1 {
                return Err(KernelError::failed("a launch failure"));
            }
            count.fetch_add(1, Ordering::SeqCst);
            let (open, opened) = &*hold;
            drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
            Ok(())
        })],
    );
    (0..5).for_each(|_| assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x"));
    broken.store(0, Ordering::SeqCst);
    clock.advance(Duration::from_secs(30));
    let (sender, served) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..64 {
            let (engine, sender) = (&engine, sender.clone());
            scope.spawn(move || sender.send(Norm::default().serve(engine).unwrap()).unwrap());
        }
        for _ in 0..61 {
            assert_eq!(served.recv().unwrap(), "good.x");
        }
        assert_eq!(inside.load(Ordering::SeqCst), 3);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        (0..3).for_each(|_| assert_eq!(served.recv().unwrap(), "probed.x"));
    });
    let counters = engine.health().summary().counters;
    assert_eq!((counters.probes, counters.closings), (3, 1));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "probed.x");
}

/// Kernels panic on 16 threads at once: no lock is poisoned, every call is served, and the engine keeps
/// working.
#[test]
fn panics_on_many_threads_poison_nothing() {
    let (engine, _) = engine_with_manual_clock();
    register(&engine, [kernel_fn(host_spec("bad.x").priority(90), &NORM_RMS, || panic!("in a kernel"))]);
    thread::scope(|scope| {
        for number in 0..16 {
            let engine = &engine;
            scope.spawn(move || {
                for turn in 0..20 {
                    assert_eq!(Norm::hidden(64 + (number + turn) % 4).serve(engine).unwrap(), "good.x");
                }
            });
        }
    });
    engine.unregister_backend("bad");
    engine.health().reset_kernel("bad.x");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    assert_eq!(engine.health().summary().blocking, 0);
}

/// Two kernels fail on different threads at the same time: each has its own circuit, and each opens once.
#[test]
fn circuits_of_two_kernels_are_independent() {
    let (engine, _) = engine_with_manual_clock();
    let failing = |id: &str, limit: &str| {
        let spec = host_spec(id).priority(90).limit(limit, lz_core::ReasonCode::AxisLimit);
        kernel_fn(spec, &NORM_RMS, || Err(KernelError::failed("a launch failure")))
    };
    register(&engine, [failing("even.x", "hidden == 64"), failing("odd.x", "hidden == 65")]);
    thread::scope(|scope| {
        for number in 0..16 {
            let engine = &engine;
            scope.spawn(move || {
                (0..20)
                    .for_each(|_| assert_eq!(Norm::hidden(64 + number % 2).serve(engine).unwrap(), "good.x"));
            });
        }
    });
    let summary = engine.health().summary();
    assert_eq!((summary.counters.openings, summary.blocking), (2, 2));
    assert_eq!(Norm::hidden(64).codes(&engine, "even.x"), ["CIRCUIT_OPEN"]);
    assert_eq!(Norm::hidden(65).codes(&engine, "odd.x"), ["CIRCUIT_OPEN"]);
}

/// An operator resets a kernel repeatedly while it fails on 16 threads: no deadlock, and every call is
/// served.
#[test]
fn concurrent_resets_and_failures_do_not_deadlock() {
    let (engine, clock) = engine_with_manual_clock();
    register(
        &engine,
        [kernel_fn(host_spec("bad.x").priority(90), &NORM_RMS, || Err(KernelError::failed("again")))],
    );
    run_concurrently(
        16,
        |_| assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x"),
        || {
            for _ in 0..200 {
                engine.health().reset_kernel("bad.x");
                clock.advance(Duration::from_secs(31));
                engine.health().poll();
                assert!(engine.health().summary().blocking <= 1);
            }
        },
    );
    assert!(engine.fallbacks() > 0);
}
