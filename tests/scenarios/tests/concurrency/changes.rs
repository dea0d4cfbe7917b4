//! 64 threads select while registry, policy, evidence and health change under them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use lz_core::device::DeviceSpec;
use lz_core::{KernelError, Reason, ReasonCode};
use lz_engine::evidence::{Evidence, Finding, Measured, MemoryProbe, Question};
use lz_engine::policy::Policy;
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Ask, Norm, Prefill};
use lz_scenarios::house::{host_house, host_spec, house_on, register};
use lz_scenarios::kernels::{doing, quiet};

use super::{Rounds, hammer, only};

/// A call of one of many shapes.
fn shape(turn: u64) -> Norm {
    Norm { rows: (turn % 300) as i64, hidden: 64 + 8 * (turn % 7) as i64, ..Norm::default() }
}

/// The policy is replaced 300 times under 64 threads: every answer belongs to a policy that was in force during its call.
#[test]
fn no_answer_is_older_than_the_policy() {
    let engine = host_house((0..4).map(|number| host_spec(&format!("k{number}.x"))));
    engine.set_policy(only("k0"));
    let rounds = Rounds::default();
    hammer(
        64,
        |turn| {
            let (who, possible) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            assert!(
                possible.clone().any(|round| who == format!("k{}.x", round % 4)),
                "{who} in {possible:?}"
            );
        },
        || {
            for round in 1..300 {
                rounds.enter(round, || engine.set_policy(only(&format!("k{}", round % 4))));
            }
        },
    );
}

/// A plugin is installed and removed 200 times under 64 threads: it runs only while it is there, and always while it is there.
#[test]
fn no_answer_is_older_than_the_registry() {
    let engine = host_house([host_spec("base.x")]);
    let rounds = Rounds::default();
    hammer(
        64,
        |turn| {
            let (who, possible) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            let fits =
                possible.clone().any(|round| who == if round % 2 == 0 { "base.x" } else { "plugin.x" });
            assert!(fits, "{who} in {possible:?}");
        },
        || {
            for round in 1..200 {
                rounds.enter(round, || {
                    if round % 2 == 1 {
                        register(&engine, [quiet(host_spec("plugin.x").priority(90), &NORM_RMS)]);
                    } else {
                        engine.unregister_backend("plugin");
                    }
                });
            }
        },
    );
}

/// A backend is disabled and enabled 300 times under 64 threads: every call is served, and never by a disabled one.
#[test]
fn a_flapping_backend_leaves_no_call_unserved() {
    let engine = host_house([host_spec("steady.x"), host_spec("flapping.x").priority(90)]);
    let rounds = Rounds::default();
    hammer(
        64,
        |turn| {
            let (who, possible) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            let fits =
                possible.clone().any(|round| who == if round % 2 == 0 { "flapping.x" } else { "steady.x" });
            assert!(fits, "{who} in {possible:?}");
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

/// Figures for one kernel or the other.
struct Favour(&'static str);

impl Evidence for Favour {
    fn findings(&self, _: &Question<'_>, tell: &mut dyn FnMut(&Finding<'_>)) {
        let measured = Measured { median_ns: 100.0, samples: 40, age_seconds: 1, confidence: 1.0 };
        tell(&Finding { kernel: self.0, version: "1", capabilities_hash: "", measured });
    }
}

/// New figures arrive 300 times under 64 threads: every answer follows figures that were known during its call.
#[test]
fn no_answer_is_older_than_the_figures() {
    let engine = host_house([host_spec("alpha.x"), host_spec("beta.x")]);
    engine.set_evidence(Some(Arc::new(Favour("alpha.x"))));
    let rounds = Rounds::default();
    hammer(
        64,
        |turn| {
            let (who, possible) = rounds.during(|| shape(turn).serve(&engine).unwrap());
            let fits = possible.clone().any(|round| who == if round % 2 == 0 { "alpha.x" } else { "beta.x" });
            assert!(fits, "{who} in {possible:?}");
        },
        || {
            for round in 1..300 {
                let favour = if round % 2 == 0 { "alpha.x" } else { "beta.x" };
                rounds.enter(round, || engine.set_evidence(Some(Arc::new(Favour(favour)))));
            }
        },
    );
}

/// Everything at once: kernels that fail and panic come and go, policy and figures change, health is reset. No deadlock, no panic gets out.
#[test]
fn nothing_breaks_while_everything_changes() {
    let engine = host_house([host_spec("reference.x")]);
    let turns = Arc::new(AtomicU64::new(0));
    let known = ["reference.x", "plugin.x", "flaky.x"];
    let calls = hammer(
        64,
        |turn| {
            let who = shape(turn).serve(&engine).expect("the reference always can");
            assert!(known.contains(&who.as_str()), "{who}");
        },
        || {
            for round in 0..100u64 {
                let turns = Arc::clone(&turns);
                let flaky = doing(host_spec("flaky.x").priority(90), &NORM_RMS, move || {
                    match turns.fetch_add(1, Ordering::Relaxed) % 3 {
                        0 => Err(KernelError::failed("now and then")),
                        1 => panic!("now and then"),
                        _ => Ok(()),
                    }
                });
                register(&engine, [flaky, quiet(host_spec("plugin.x").priority(50), &NORM_RMS)]);
                engine.set_policy(Policy { prefer: only("plugin").allow, ..Policy::default() });
                engine.set_evidence(Some(Arc::new(Favour("flaky.x"))));
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

/// The number of the engine's state, read by 16 threads while it changes, never goes back for any of them.
#[test]
fn the_state_never_goes_back() {
    let engine = host_house((0..4).map(|number| host_spec(&format!("k{number}.x"))));
    let seen: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
    hammer(
        16,
        |turn| {
            let now = engine.generation();
            let before = seen[(turn % 16) as usize].swap(now, Ordering::Relaxed);
            assert!(now >= before, "{before} then {now}");
        },
        || (0..400).for_each(|round| engine.set_policy(only(&format!("k{}", round % 4)))),
    );
}

/// Explanations are asked for while everything changes: each is whole in itself, its plan is its first possible candidate.
#[test]
fn an_explanation_is_whole_while_everything_changes() {
    let engine = house_on("h100");
    hammer(
        16,
        |_| {
            let explanation = Prefill::llama3_8b().explain(&engine);
            let possible: Vec<&str> = explanation
                .candidates
                .iter()
                .filter(|one| one.reasons.is_empty())
                .map(|one| one.kernel.as_str())
                .collect();
            let plan = explanation.plan.as_ref().unwrap();
            assert_eq!(plan.kernel, possible[0]);
            assert_eq!(plan.fallbacks, possible[1..]);
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

/// 16 threads register the same kernel: one of them succeeds, the others are told that it is there.
#[test]
fn of_many_registrations_of_one_kernel_one_succeeds() {
    let engine = host_house([host_spec("base.x")]);
    let (start, successes) = (Barrier::new(16), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                start.wait();
                match engine.register([quiet(host_spec("plugin.x").priority(90), &NORM_RMS)]) {
                    Ok(()) => drop(successes.fetch_add(1, Ordering::SeqCst)),
                    Err(error) => assert!(error.has(ReasonCode::KernelDuplicate), "{error}"),
                }
            });
        }
    });
    assert_eq!(successes.into_inner(), 1);
    assert_eq!(engine.registry().kernels().count(), 2);
}

/// 16 threads register a backend each, at the same time: none is lost.
#[test]
fn registrations_at_the_same_time_are_all_kept() {
    let engine = host_house([host_spec("base.x")]);
    let start = Barrier::new(16);
    thread::scope(|scope| {
        for number in 0..16 {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                register(engine, [quiet(host_spec(&format!("plugin{number}.x")), &NORM_RMS)]);
            });
        }
    });
    let registry = engine.registry();
    let ids: HashSet<&str> = registry.kernels().map(|entry| entry.spec.id.as_str()).collect();
    assert_eq!(ids.len(), 17);
    assert_eq!(registry.backends().count(), 17);
}

/// 16 threads set the policy that is in force already: nothing changes, no cached decision is thrown away.
#[test]
fn setting_the_same_policy_from_many_threads_changes_nothing() {
    let engine = host_house([host_spec("alpha.x"), host_spec("beta.x")]);
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

/// Free memory shrinks and grows under 16 threads: each call is held against what was free during it, cached or not.
#[test]
fn free_memory_is_looked_at_on_each_call() {
    #[derive(Default)]
    struct Free(AtomicU64);
    impl MemoryProbe for Free {
        fn free_bytes(&self, _: &DeviceSpec) -> Option<u64> {
            Some(self.0.load(Ordering::SeqCst))
        }
    }
    let mut hungry = host_spec("hungry.x").priority(90);
    hungry.workspace = Some("rows * 1024".to_owned());
    let engine = host_house([hungry, host_spec("frugal.x")]);
    let free = Arc::new(Free(AtomicU64::new(1 << 30)));
    engine.set_memory_probe(Some(free.clone()));
    let rounds = Rounds::default();
    hammer(
        16,
        |_| {
            let (who, possible) = rounds.during(|| Norm::rows(200).serve(&engine).unwrap());
            let fits =
                possible.clone().any(|round| who == if round % 2 == 0 { "hungry.x" } else { "frugal.x" });
            assert!(fits, "{who} in {possible:?}");
        },
        || {
            for round in 1..2000 {
                let bytes = if round % 2 == 0 { 1 << 30 } else { 1 << 10 };
                rounds.enter(round, || free.0.store(bytes, Ordering::SeqCst));
            }
        },
    );
}
