//! Concurrent decision cache misses: each shape is decided once, and the cache stays within its capacity.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;

use lz_core::{Context, OperationInfo, ReasonCode};
use lz_engine::Engine;
use lz_engine::engine::JitRequests;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence};
use lz_engine::policy::{CacheConfig, Policy, WithSource};
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{host_engine, host_spec};

use super::run_concurrently;

/// Evidence that counts decisions; the first one blocks until it is released.
struct BlockingEvidence {
    decisions: AtomicU64,
    release: Mutex<Option<Receiver<()>>>,
}

impl Evidence for BlockingEvidence {
    fn findings(&self, _: &EvidenceQuery<'_>, _: &mut dyn FnMut(&KernelEvidence<'_>)) {
        self.decisions.fetch_add(1, Ordering::SeqCst);
        let release = self.release.lock().unwrap().take();
        if let Some(release) = release {
            release.recv().unwrap();
        }
    }
}

fn blocking_evidence() -> (Arc<BlockingEvidence>, mpsc::Sender<()>) {
    let (sender, release) = mpsc::channel();
    (Arc::new(BlockingEvidence { decisions: AtomicU64::new(0), release: Mutex::new(Some(release)) }), sender)
}

/// 32 threads miss on the same new shape at the same time: it is decided once, and all threads get that
/// decision.
#[test]
fn concurrent_misses_of_one_shape_decide_once() {
    let engine = host_engine([host_spec("alpha.x"), host_spec("beta.x")]);
    let (evidence, release) = blocking_evidence();
    engine.set_evidence(Some(evidence.clone()));
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                arrived.fetch_add(1, Ordering::SeqCst);
                assert_eq!(Norm::default().serve(&engine).unwrap(), "alpha.x");
            });
        }
        while arrived.load(Ordering::SeqCst) < 32 || evidence.decisions.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        release.send(()).unwrap();
    });
    assert_eq!(evidence.decisions.load(Ordering::SeqCst), 1);
    assert_eq!(engine.cached_decisions(), 1);
}

/// While the decision for one shape blocks, other shapes are decided and served.
#[test]
fn a_slow_decision_does_not_block_other_shapes() {
    let engine = host_engine([host_spec("alpha.x")]);
    let (evidence, release) = blocking_evidence();
    engine.set_evidence(Some(evidence.clone()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Norm::hidden(64).serve(&engine).unwrap());
        while evidence.decisions.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // Some of these shapes may share a lock shard with the first, but not all of them.
        let served = mpsc::channel::<String>();
        for hidden in 65..97 {
            let (engine, sender) = (&engine, served.0.clone());
            scope.spawn(move || sender.send(Norm::hidden(hidden).serve(engine).unwrap()));
        }
        assert_eq!(served.1.recv().unwrap(), "alpha.x");
        assert!(!waiting.is_finished());
        release.send(()).unwrap();
        assert_eq!(waiting.join().unwrap(), "alpha.x");
    });
    assert_eq!(evidence.decisions.load(Ordering::SeqCst), 33);
}

/// 64 threads meet 100 shapes in different orders: each shape is decided once.
#[test]
fn each_of_many_shapes_is_decided_once() {
    let engine = host_engine([host_spec("alpha.x")]);
    let (evidence, release) = blocking_evidence();
    release.send(()).unwrap();
    engine.set_evidence(Some(evidence.clone()));
    thread::scope(|scope| {
        for number in 0..64i64 {
            let engine = &engine;
            scope.spawn(move || {
                for turn in 0..100 {
                    let hidden = 1 + (turn * 37 + number * 11) % 100;
                    assert_eq!(Norm::hidden(hidden).serve(engine).unwrap(), "alpha.x");
                }
            });
        }
    });
    assert_eq!(evidence.decisions.load(Ordering::SeqCst), 100);
    assert_eq!(engine.cached_decisions(), 100);
}

/// The evidence provider calls the engine recursively from several threads: no deadlock.
#[test]
fn evidence_that_calls_the_engine_does_not_deadlock() {
    struct RecursiveEvidence(Engine, AtomicU64);
    impl Evidence for RecursiveEvidence {
        fn findings(&self, question: &EvidenceQuery<'_>, _: &mut dyn FnMut(&KernelEvidence<'_>)) {
            if self.1.fetch_add(1, Ordering::SeqCst) < 40 {
                assert_eq!(self.0.decide(question.operation, question.context).unwrap(), "alpha.x");
            }
        }
    }
    let engine = host_engine([host_spec("alpha.x")]);
    let recursive = Arc::new(RecursiveEvidence(engine.clone(), AtomicU64::new(0)));
    engine.set_evidence(Some(recursive.clone()));
    thread::scope(|scope| {
        for hidden in 0..8 {
            let engine = &engine;
            scope.spawn(move || assert_eq!(Norm::hidden(64 + hidden).serve(engine).unwrap(), "alpha.x"));
        }
    });
    assert!(recursive.1.load(Ordering::SeqCst) >= 8);
    engine.set_evidence(None);
}

/// Records which kernels are requested for compilation.
#[derive(Default)]
struct CompileRequests(Mutex<Vec<String>>);

impl JitRequests for CompileRequests {
    fn request(&self, kernel: &str, _: &'static OperationInfo, _: &Context) {
        self.0.lock().unwrap().push(kernel.to_owned());
    }
}

/// 64 threads meet a shape whose best kernel is not compiled: compilation is requested once, and no thread
/// waits for it.
#[test]
fn compilation_of_a_cold_kernel_is_requested_once() {
    let mut jit = host_spec("jit.x").priority(90);
    jit.jit = true;
    let engine = host_engine([jit, host_spec("ready.x")]);
    let requests = Arc::new(CompileRequests::default());
    engine.set_jit(Some(requests.clone()));
    run_concurrently(64, |_| assert_eq!(Norm::default().serve(&engine).unwrap(), "ready.x"), || {});
    assert_eq!(*requests.0.lock().unwrap(), ["jit.x"]);
}

/// A kernel is marked warm while 16 threads are serving: each thread uses the old kernel before and the new
/// one after.
#[test]
fn a_kernel_becomes_warm_for_all_threads_at_once() {
    let mut jit = host_spec("jit.x").priority(90);
    jit.jit = true;
    let engine = host_engine([jit, host_spec("ready.x")]);
    let rounds = super::Rounds::default();
    run_concurrently(
        16,
        |_| {
            let (kernel, active_rounds) = rounds.during(|| Norm::default().serve(&engine).unwrap());
            let fits =
                active_rounds.clone().any(|round| kernel == if round == 0 { "ready.x" } else { "jit.x" });
            assert!(fits, "{kernel} in {active_rounds:?}");
        },
        || {
            let call = Norm::default();
            rounds.enter(1, || engine.mark_warm("jit.x", call.operation(), &call.context().unwrap()));
        },
    );
    assert_eq!(Norm::default().serve(&engine).unwrap(), "jit.x");
}

fn engine_with_cache_capacity(max_entries: usize) -> Engine {
    let engine = host_engine([
        host_spec("small.x").limit("hidden <= 500", ReasonCode::AxisLimit).priority(90),
        host_spec("large.x"),
    ]);
    let cache = CacheConfig { max_entries, ..CacheConfig::default() };
    engine.set_policy(Policy { cache: WithSource::new(cache, "layerzero.yaml:1"), ..Policy::default() });
    engine
}

/// 16 threads meet far more shapes than the cache capacity: it never exceeds its capacity, and every decision
/// is correct.
#[test]
fn the_cache_stays_within_capacity_under_many_threads() {
    let engine = engine_with_cache_capacity(100);
    thread::scope(|scope| {
        for number in 0..16i64 {
            let engine = &engine;
            scope.spawn(move || {
                for turn in 0..500 {
                    let hidden = 1 + (turn * 61 + number * 17) % 1000;
                    let expected = if hidden <= 500 { "small.x" } else { "large.x" };
                    assert_eq!(Norm::hidden(hidden).serve(engine).unwrap(), expected);
                    assert!(engine.cached_decisions() <= 100);
                }
            });
        }
    });
}

/// The cache grows from its initial size to its capacity under 16 threads: entries are kept, and then the
/// size is stable.
#[test]
fn the_cache_grows_to_capacity_under_many_threads() {
    let engine = engine_with_cache_capacity(4000);
    let round = || {
        thread::scope(|scope| {
            for number in 0..16i64 {
                let engine = &engine;
                scope.spawn(move || {
                    for turn in 0..600 {
                        let hidden = 1 + (turn + number * 37) % 600;
                        let expected = if hidden <= 500 { "small.x" } else { "large.x" };
                        assert_eq!(Norm::hidden(hidden).serve(engine).unwrap(), expected);
                    }
                });
            }
        });
        (engine.cached_decisions(), engine.generation())
    };
    round();
    let (kept, generation) = round();
    assert_eq!(kept, 600);
    assert_eq!(round(), (600, generation));
}
