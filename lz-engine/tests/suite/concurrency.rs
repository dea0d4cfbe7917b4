//! Concurrent selection while registry, policy and health change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::engine_support::{Shape, attend, engine, entry, failing, run, spec};
use lz_core::KernelError;
use lz_engine::Engine;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence};
use lz_engine::policy::{CacheConfig, ListEntry, Pattern, Policy, Provenance, WithSource};

const KERNELS: u64 = 4;

fn only(kernel: u64) -> Policy {
    let listed = ListEntry {
        kernels: Pattern::new(&format!("k{kernel}.x")),
        operations: Pattern::any(),
        source: Provenance::new("test"),
    };
    Policy { allow: vec![listed], ..Policy::default() }
}

/// Every answer belongs to a policy that was in force at some time during the call.
#[test]
fn no_decision_is_stale_while_the_policy_changes() {
    let engine = engine((0..KERNELS).map(|number| spec(&format!("k{number}.x"))));
    engine.set_policy(only(0));
    let (begun, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..64 {
            let (engine, begun, done, stop) = (&engine, &begun, &done, &stop);
            scope.spawn(move || {
                let mut turn = number;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    let shape = Shape { head_dim: turn % 7, seq: turn % 300, ..Shape::default() };
                    let before = done.load(Ordering::SeqCst);
                    let who = run(engine, &shape).expect("some kernel is always allowed");
                    let after = begun.load(Ordering::SeqCst);
                    let fits = (before..=after).any(|round| who == format!("k{}.x", round % KERNELS));
                    assert!(fits, "{who} between rounds {before} and {after}");
                }
            });
        }
        for round in 1..400 {
            begun.store(round, Ordering::SeqCst);
            engine.set_policy(only(round % KERNELS));
            done.store(round, Ordering::SeqCst);
            if round % 16 == 0 {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn concurrent_changes_are_safe() {
    let engine = engine([spec("reference.x")]);
    let flaky = Arc::new(AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..64 {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || {
                let mut turn = number;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    let shape = Shape { head_dim: turn % 5, batch: turn % 40, ..Shape::default() };
                    let who = run(engine, &shape).expect("the reference always runs");
                    assert!(["reference.x", "plugin.x", "flaky.x"].contains(&who.as_str()), "{who}");
                }
            });
        }
        for round in 0..150u64 {
            let counter = Arc::clone(&flaky);
            let plugin = entry(spec("plugin.x").priority(50));
            let flaky = failing(spec("flaky.x").priority(90), move || {
                match counter.fetch_add(1, Ordering::Relaxed) % 3 {
                    0 => Err(KernelError::failed("now and then")),
                    1 => panic!("now and then"),
                    _ => Ok(()),
                }
            });
            engine.register([plugin, flaky]).expect("the backends were taken away");
            engine.set_policy(Policy { prefer: only(9).allow, ..Policy::default() });
            engine.set_policy(Policy::default());
            if round % 10 == 0 {
                engine.health().reset_kernel("flaky.x");
            }
            engine.unregister_backend("plugin");
            engine.unregister_backend("flaky");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(run(&engine, &Shape::default()).ok().as_deref(), Some("reference.x"));
}

/// Counts the decisions that are made.
struct Counted(AtomicU64);

impl Evidence for Counted {
    fn findings(&self, _: &EvidenceQuery<'_>, _: &mut dyn FnMut(&KernelEvidence<'_>)) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // Long enough for all threads to miss.
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn concurrent_misses_decide_once() {
    let engine = engine([spec("a.x"), spec("b.x")]);
    let counted = Arc::new(Counted(AtomicU64::new(0)));
    engine.set_evidence(Some(counted.clone()));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(run(&engine, &Shape::default()).ok().as_deref(), Some("a.x")));
        }
    });
    assert_eq!(counted.0.load(Ordering::SeqCst), 1);
}

/// A source of evidence may call the engine without a deadlock.
#[test]
fn evidence_may_call_the_engine_without_deadlock() {
    struct Asks(Engine, AtomicU64);
    impl Evidence for Asks {
        fn findings(&self, question: &EvidenceQuery<'_>, _: &mut dyn FnMut(&KernelEvidence<'_>)) {
            if self.1.fetch_add(1, Ordering::SeqCst) < 3 {
                assert!(self.0.decide(question.operation, question.context).is_ok());
            }
        }
    }
    let engine = engine([spec("a.x")]);
    engine.set_evidence(Some(Arc::new(Asks(engine.clone(), AtomicU64::new(0)))));
    assert!(run(&engine, &Shape::default()).is_ok());
    engine.set_evidence(None);
}

#[test]
fn cache_grows_up_to_its_bound() {
    let engine = engine([spec("a.x")]);
    let cache = CacheConfig { max_entries: 1000, ..CacheConfig::default() };
    engine.set_policy(Policy { cache: WithSource::new(cache, "test"), ..Policy::default() });
    let call = |head_dim| run(&engine, &Shape { head_dim, ..Shape::default() }).is_ok();
    for head_dim in 0..5000 {
        assert!(call(head_dim));
        assert!(engine.cached_decisions() <= 1000);
    }
    // All fit: repeating the calls inserts nothing.
    (0..900).for_each(|head_dim| assert!(call(head_dim)));
    (0..900).for_each(|head_dim| assert!(call(head_dim)));
    let generation = engine.generation();
    (0..900).for_each(|head_dim| assert!(call(head_dim)));
    assert_eq!(engine.generation(), generation);
    let off = CacheConfig { enabled: false, ..cache };
    engine.set_policy(Policy { cache: WithSource::new(off, "test"), ..Policy::default() });
    assert!(call(1) && engine.cached_decisions() == 0);
    assert_eq!(engine.decide(attend(), &Shape::default().context()).ok().as_deref(), Some("a.x"));
}
