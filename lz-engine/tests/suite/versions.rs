//! Kernels that are replaced under load, and versions side by side, with kernels in this process.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine_support::{Does, Shape, attend, engine, entry, failing, run, spec};
use lz_core::{KernelEntry, KernelError, KernelSpec, ReasonCode};
use lz_engine::Engine;
use lz_engine::health::CircuitReport;
use lz_engine::policy::layer::SettingInput;

fn version(id: &str, version: &str) -> KernelSpec {
    let mut spec = spec(id).priority(50);
    version.clone_into(&mut spec.version);
    spec
}

/// A kernel that counts its calls, and a witness that is dropped with it.
fn counting(spec: KernelSpec) -> (KernelEntry, Arc<AtomicUsize>, Weak<()>) {
    let (count, witness) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let (counted, held) = (Arc::clone(&count), Arc::clone(&witness));
    let does = move || {
        let _held = &held;
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    (failing(spec, does), count, Arc::downgrade(&witness))
}

fn set(engine: &Engine, key: &str, value: &str) {
    engine.configure([(key.to_owned(), SettingInput::Text(value.to_owned()))]).unwrap();
}

#[test]
fn kernels_are_replaced_in_one_step_while_threads_call_them() {
    let engine = Engine::new();
    let (first, first_calls, first_alive) = counting(version("a.x", "1"));
    let (second, second_calls, _) = counting(version("a.x", "2"));
    engine.register([first, entry(spec("reference.x"))]).unwrap();
    let stop = AtomicBool::new(false);
    let replacement = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x", "there always is one");
                }
            });
        }
        while first_calls.load(Ordering::Relaxed) < 1000 {
            std::thread::yield_now();
        }
        let replacement = engine.replace_kernels(vec![second], Duration::from_secs(60)).unwrap();
        let before = first_calls.load(Ordering::Relaxed);
        while second_calls.load(Ordering::Relaxed) < 1000 {
            std::thread::yield_now();
        }
        assert_eq!(first_calls.load(Ordering::Relaxed), before, "the old kernel gets no calls any more");
        stop.store(true, Ordering::Relaxed);
        replacement
    });
    assert_eq!(replacement.replaced, [("a.x".to_owned(), "1".to_owned())]);
    assert!(replacement.is_drained && first_alive.upgrade().is_none(), "the old kernel was dropped");
    assert_eq!(engine.registry().backend("a").unwrap().version, "2");
}

#[test]
fn a_reference_is_replaced() {
    let engine = engine([spec("a.x"), spec("reference.x")]);
    for number in ["2", "2", "3"] {
        let mut replacement = spec("reference.x");
        number.clone_into(&mut replacement.version);
        engine.replace_kernels(vec![entry(replacement)], Duration::ZERO).unwrap();
        assert_eq!(engine.registry().kernel("reference.x").unwrap().spec.version, number);
    }
}

#[test]
fn an_invalid_kernel_replaces_nothing() {
    let engine = engine([version("a.x", "1"), spec("reference.x")]);
    let generation = engine.generation();
    let wrong = version("a.x", "2").limit("no_such_axis > 1", ReasonCode::AxisLimit);
    engine.replace_kernels(vec![entry(wrong)], Duration::ZERO).unwrap_err();
    assert_eq!(engine.generation(), generation);
    assert_eq!(engine.registry().kernel("a.x").unwrap().spec.version, "1");
}

#[test]
fn the_health_of_a_replaced_kernel_is_forgotten() {
    let engine = engine([spec("reference.x")]);
    let bad = failing(version("a.x", "1"), || Err(KernelError::failed("no")));
    engine.register([bad]).unwrap();
    (0..8).for_each(|_| assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x"));
    assert!(engine.circuits().iter().any(CircuitReport::refuses));
    engine.replace_kernels(vec![entry(version("a.x", "2"))], Duration::ZERO).unwrap();
    assert!(engine.circuits().is_empty());
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
}

#[test]
fn a_plan_of_a_replaced_kernel_is_stale() {
    let engine = engine([version("a.x", "1"), spec("reference.x")]);
    let context = Shape::default().context();
    let pinned = engine.pin(attend(), &context, &mut |_| Ok(())).unwrap();
    let run_pinned = || engine.run_pinned(&pinned, &context, &mut |_, _| Ok(()));
    run_pinned().unwrap();
    engine.register([entry(spec("b.x"))]).unwrap();
    run_pinned().unwrap();
    engine.replace_kernels(vec![entry(version("a.x", "2"))], Duration::ZERO).unwrap();
    let error = run_pinned().unwrap_err();
    assert!(error.has(ReasonCode::PlanStale) && error.to_string().contains("replaced"), "{error}");
}

#[test]
fn a_version_needs_a_registered_kernel_of_another_version() {
    let engine = engine([version("a.x", "1")]);
    let error = engine.register_versions([entry(version("b.x", "1"))]).unwrap_err();
    assert!(error.has(ReasonCode::KernelUnknown), "{error}");
    let error = engine.register_versions([entry(version("a.x", "1"))]).unwrap_err();
    assert!(error.has(ReasonCode::KernelDuplicate), "{error}");
    engine.register_versions([entry(version("a.x", "2"))]).unwrap();
    let error = engine.register_versions([entry(version("a.x", "2"))]).unwrap_err();
    assert!(error.has(ReasonCode::KernelDuplicate), "{error}");
}

#[test]
fn calls_return_to_the_fast_path_when_a_version_has_all_calls() {
    let engine = engine([version("a.x", "1"), spec("reference.x")]);
    engine.register_versions([entry(version("a.x", "2"))]).unwrap();
    set(&engine, "rollout.shares", "a.x@2: 50");
    let hits = |engine: &Engine| engine.metrics().cache_hits_by_level.thread;
    (0..100).for_each(|_| drop(run(&engine, &Shape::default()).unwrap()));
    assert_eq!(hits(&engine), 0, "divided calls take the slow path");
    set(&engine, "rollout.shares", "a.x@2: 100");
    (0..100).for_each(|_| assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x@2"));
    assert!(hits(&engine) > 90, "{}", hits(&engine));
    set(&engine, "rollout.shares", "");
    (0..100).for_each(|_| assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x"));
    assert!(hits(&engine) > 180, "{}", hits(&engine));
}

#[test]
fn a_version_that_fails_falls_back_to_the_stable_one() {
    let engine = engine([version("a.x", "1"), spec("reference.x")]);
    engine.register_versions([failing(version("a.x", "2"), || Err(KernelError::failed("no")))]).unwrap();
    set(&engine, "rollout.shares", "a.x@2: 50");
    (0..40).for_each(|_| assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x"));
    let metrics = engine.metrics();
    assert!(metrics.fallbacks.iter().all(|one| one.kernel == "a.x@2"), "{:?}", metrics.fallbacks);
    assert!(engine.circuits().iter().all(|circuit| circuit.name != "a.x"), "{:?}", engine.circuits());
}

#[test]
fn a_version_that_cannot_run_a_call_leaves_it_to_the_stable_one() {
    let engine = engine([version("a.x", "1")]);
    let small = version("a.x", "2").limit("seq <= 100", ReasonCode::AxisLimit);
    engine.register_versions([entry(small)]).unwrap();
    set(&engine, "rollout.shares", "a.x@2: 50");
    let calls = |seq| {
        let shape = Shape { seq, ..Shape::default() };
        (0..100).filter(|_| run(&engine, &shape).unwrap() == "a.x@2").count()
    };
    assert_eq!((calls(64), calls(256)), (50, 0));
}

#[test]
fn patterns_name_all_versions_or_one() {
    let denied = |pattern: &str| {
        let engine = engine([version("a.x", "1"), spec("reference.x")]);
        engine.register_versions([entry(version("a.x", "2"))]).unwrap();
        set(&engine, "rollout.shares", "a.x@2: 100");
        engine.configure([("deny".to_owned(), SettingInput::Texts(vec![pattern.to_owned()]))]).unwrap();
        run(&engine, &Shape::default()).unwrap()
    };
    assert_eq!(denied("a.x"), "reference.x");
    assert_eq!(denied("a.x@2"), "reference.x", "a.x is not in use");
    assert_eq!(denied("a.x@1"), "a.x@2");
    assert_eq!(denied("b.*"), "a.x@2");
}

#[test]
fn replacing_a_backend_removes_its_other_versions_and_verdicts() {
    let engine = engine([version("a.x", "1")]);
    engine.register_versions([entry(version("a.x", "2"))]).unwrap();
    engine.promote_version("a.x@2").unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x@2");
    let next = KernelEntry::new(version("a.x", "2"), Does(Box::new(|| Ok(())))).of(attend());
    engine.replace_backend("a", vec![next], Duration::ZERO).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
    assert!(engine.canaries().is_empty());
}
