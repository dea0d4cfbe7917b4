//! 64 threads select while registry, policy, evidence and health change concurrently.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use lz_core::device::DeviceSpec;
use lz_core::{KernelError, Reason, ReasonCode};
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured, MemoryProbe};
use lz_engine::policy::Policy;
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{engine_on, host_engine, host_spec, register};
use lz_scenarios::kernels::{kernel_fn, noop_kernel};

use super::{Rounds, only, run_concurrently};

/// A norm whose shape depends on `turn`.
fn shape(turn: u64) -> Norm {
    Norm { rows: (turn % 300) as i64, hidden: 64 + 8 * (turn % 7) as i64, ..Norm::default() }
}

/// The policy is replaced 300 times under 64 threads: every decision matches a policy that was active during
/// its call.
#[test]
fn decisions_follow_the_active_policy() {
    let engine = host_engine((0..4).map(|number| host_spec(&format!("k{number}.x"))));
    engine.set_policy(only("k0"));
    let rounds = Rounds::default();
    run_concurrently(
        64,
        |turn| {
            let (kernel, active_rounds) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            assert!(
                active_rounds.clone().any(|round| kernel == format!("k{}.x", round % 4)),
                "{kernel} in {active_rounds:?}"
            );
        },
        || {
            for round in 1..300 {
                rounds.enter(round, || engine.set_policy(only(&format!("k{}", round % 4))));
            }
        },
    );
}

/// A plugin is registered and removed 200 times under 64 threads: it runs exactly while it is registered.
#[test]
fn decisions_follow_the_active_registry() {
    let engine = host_engine([host_spec("base.x")]);
    let rounds = Rounds::default();
    run_concurrently(
        64,
        |turn| {
            let (kernel, active_rounds) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            let fits = active_rounds
                .clone()
                .any(|round| kernel == if round % 2 == 0 { "base.x" } else { "plugin.x" });
            assert!(fits, "{kernel} in {active_rounds:?}");
        },
        || {
            for round in 1..200 {
                rounds.enter(round, || {
                    if round % 2 == 1 {
                        register(&engine, [noop_kernel(host_spec("plugin.x").priority(90), &NORM_RMS)]);
                    } else {
                        engine.unregister_backend("plugin");
                    }
                });
            }
        },
    );
}

/// A backend is disabled and enabled 300 times under 64 threads: every call is served, never by the disabled
/// backend.
#[test]
fn a_flapping_backend_never_fails_a_call() {
    let engine = host_engine([host_spec("steady.x"), host_spec("flapping.x").priority(90)]);
    let rounds = Rounds::default();
    run_concurrently(
        64,
        |turn| {
            let (kernel, active_rounds) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            let fits = active_rounds
                .clone()
                .any(|round| kernel == if round % 2 == 0 { "flapping.x" } else { "steady.x" });
            assert!(fits, "{kernel} in {active_rounds:?}");
        },
        || {
            for round in 1..300 {
                rounds.enter(round, || {
                    if round % 2 == 1 {
                        engine.disable_backend("flapping", Reason::new(ReasonCode::BackendDisabled));
                    } else {
                        engine.enable_backend("flapping");
                    }
                });
            }
        },
    );
}

/// Evidence that makes one kernel the fastest.
struct FastestKernel(&'static str);

impl Evidence for FastestKernel {
    fn findings(&self, _: &EvidenceQuery<'_>, on_finding: &mut dyn FnMut(&KernelEvidence<'_>)) {
        let measured = Measured { median_ns: 100.0, samples: 40, age_seconds: 1, confidence: 1.0 };
        on_finding(&KernelEvidence { kernel: self.0, version: "1", capabilities_hash: "", measured });
    }
}

/// The evidence is replaced 300 times under 64 threads: every decision follows evidence that was active
/// during its call.
#[test]
fn decisions_follow_the_active_evidence() {
    let engine = host_engine([host_spec("alpha.x"), host_spec("beta.x")]);
    engine.set_evidence(Some(Arc::new(FastestKernel("alpha.x"))));
    let rounds = Rounds::default();
    run_concurrently(
        64,
        |turn| {
            let (kernel, active_rounds) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            let fits = active_rounds
                .clone()
                .any(|round| kernel == if round % 2 == 0 { "alpha.x" } else { "beta.x" });
            assert!(fits, "{kernel} in {active_rounds:?}");
        },
        || {
            for round in 1..300 {
                let fastest = if round % 2 == 0 { "alpha.x" } else { "beta.x" };
                rounds.enter(round, || engine.set_evidence(Some(Arc::new(FastestKernel(fastest)))));
            }
        },
    );
}

/// Kernels that fail and panic are registered and removed, policy and evidence change, health is reset, all
/// at once: no deadlock, and no panic escapes.
#[test]
fn concurrent_changes_of_everything_do_not_deadlock() {
    let engine = host_engine([host_spec("reference.x")]);
    let turns = Arc::new(AtomicU64::new(0));
    let known = ["reference.x", "plugin.x", "flaky.x"];
    let calls = run_concurrently(
        64,
        |turn| {
            let kernel = shape(turn).serve(&engine).expect("the reference kernel can always run");
            assert!(known.contains(&kernel.as_str()), "{kernel}");
        },
        || {
            for round in 0..100u64 {
                let turns = Arc::clone(&turns);
                let flaky = kernel_fn(host_spec("flaky.x").priority(90), &NORM_RMS, move || {
                    match turns.fetch_add(1, Ordering::Relaxed) % 3 {
                        0 => Err(KernelError::failed("intermittent failure")),
                        1 => panic!("intermittent panic"),
                        _ => Ok(()),
                    }
                });
                register(&engine, [flaky, noop_kernel(host_spec("plugin.x").priority(50), &NORM_RMS)]);
                engine.set_policy(Policy { prefer: only("plugin").allow, ..Policy::default() });
                engine.set_evidence(Some(Arc::new(FastestKernel("flaky.x"))));
                engine.set_policy(Policy::default());
                if round % 10 == 0 {
                    engine.health().reset_kernel("flaky.x");
                }
                engine.unregister_backend("flaky");
                engine.unregister_backend("plugin");
            }
        },
    );
    assert!(calls > 64);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "reference.x");
}

/// 16 threads read the engine's generation while it changes: it never decreases for any of them.
#[test]
fn the_generation_never_decreases() {
    let engine = host_engine((0..4).map(|number| host_spec(&format!("k{number}.x"))));
    let seen: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
    run_concurrently(
        16,
        |turn| {
            let now = engine.generation();
            let before = seen[(turn % 16) as usize].swap(now, Ordering::Relaxed);
            assert!(now >= before, "{before} then {now}");
        },
        || (0..400).for_each(|round| engine.set_policy(only(&format!("k{}", round % 4)))),
    );
}

/// `explain` runs while everything changes: each explanation is consistent, its plan is the first eligible
/// candidate.
#[test]
fn an_explanation_is_consistent_under_concurrent_changes() {
    let engine = engine_on("h100");
    run_concurrently(
        16,
        |_| {
            let explanation = Prefill::llama3_8b().explain(&engine);
            let eligible: Vec<&str> = explanation
                .candidates
                .iter()
                .filter(|one| one.reasons.is_empty())
                .map(|one| one.kernel.as_str())
                .collect();
            let plan = explanation.plan.as_ref().unwrap();
            assert_eq!(plan.kernel, eligible[0]);
            assert_eq!(plan.fallbacks, eligible[1..]);
            assert_eq!(explanation.candidates.iter().filter(|one| one.chosen).count(), 1);
        },
        || {
            for round in 0..60 {
                engine.set_policy(only(["torch", "flash_attn", "*"][round % 3]));
                if round % 2 == 0 {
                    engine.disable_backend("flashinfer", Reason::new(ReasonCode::BackendDisabled));
                } else {
                    engine.enable_backend("flashinfer");
                }
            }
        },
    );
}

/// 16 threads register the same kernel: one succeeds, the others get `KERNEL_DUPLICATE`.
#[test]
fn concurrent_registrations_of_one_kernel_succeed_once() {
    let engine = host_engine([host_spec("base.x")]);
    let (start, successes) = (Barrier::new(16), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                start.wait();
                match engine.register([noop_kernel(host_spec("plugin.x").priority(90), &NORM_RMS)]) {
                    Ok(()) => drop(successes.fetch_add(1, Ordering::SeqCst)),
                    Err(error) => assert!(error.has(ReasonCode::KernelDuplicate), "{error}"),
                }
            });
        }
    });
    assert_eq!(successes.into_inner(), 1);
    assert_eq!(engine.registry().kernels().count(), 2);
}

/// 16 threads register one backend each at the same time: none is lost.
#[test]
fn concurrent_registrations_are_all_kept() {
    let engine = host_engine([host_spec("base.x")]);
    let start = Barrier::new(16);
    thread::scope(|scope| {
        for number in 0..16 {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                register(engine, [noop_kernel(host_spec(&format!("plugin{number}.x")), &NORM_RMS)]);
            });
        }
    });
    let registry = engine.registry();
    let ids: HashSet<&str> = registry.kernels().map(|entry| entry.spec.id.as_str()).collect();
    assert_eq!(ids.len(), 17);
    assert_eq!(registry.backends().count(), 17);
}

/// 16 threads set the policy that is already active: nothing changes, and no cached decision is dropped.
#[test]
fn setting_the_same_policy_from_many_threads_changes_nothing() {
    let engine = host_engine([host_spec("alpha.x"), host_spec("beta.x")]);
    engine.set_policy(only("beta"));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "beta.x");
    let generation = engine.generation();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| (0..50).for_each(|_| engine.set_policy(only("beta"))));
        }
    });
    assert_eq!((engine.generation(), engine.cached_decisions()), (generation, 1));
}

/// Free memory shrinks and grows under 16 threads: each call is checked against the memory that was free
/// during it, cached or not.
#[test]
fn free_memory_is_checked_on_each_call() {
    #[derive(Default)]
    struct Free(AtomicU64);
    impl MemoryProbe for Free {
        fn free_bytes(&self, _: &DeviceSpec) -> Option<u64> {
            Some(self.0.load(Ordering::SeqCst))
        }
    }
    let mut hungry = host_spec("hungry.x").priority(90);
    hungry.workspace = Some("rows * 1024".to_owned());
    let engine = host_engine([hungry, host_spec("frugal.x")]);
    let free = Arc::new(Free(AtomicU64::new(1 << 30)));
    engine.set_memory_probe(Some(free.clone()));
    let rounds = Rounds::default();
    run_concurrently(
        16,
        |_| {
            let (kernel, active_rounds) = rounds.during(|| Norm::rows(200).serve(&engine).unwrap());
            let fits = active_rounds
                .clone()
                .any(|round| kernel == if round % 2 == 0 { "hungry.x" } else { "frugal.x" });
            assert!(fits, "{kernel} in {active_rounds:?}");
        },
        || {
            for round in 1..2000 {
                let bytes = if round % 2 == 0 { 1 << 30 } else { 1 << 10 };
                rounds.enter(round, || free.0.store(bytes, Ordering::SeqCst));
            }
        },
    );
}
