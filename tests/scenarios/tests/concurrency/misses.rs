//! Many threads meet a shape for the first time: it is decided once, whoever is asked, and the cache keeps its bound.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;

use lz_core::{Context, OperationInfo, ReasonCode};
use lz_engine::Engine;
use lz_engine::engine::JitRequests;
use lz_engine::evidence::{Evidence, Finding, Question};
use lz_engine::policy::{CacheConfig, Policy, Sourced};
use lz_scenarios::calls::{Ask, Norm};
use lz_scenarios::house::{host_house, host_spec};

use super::hammer;

/// Counts decisions; the first waits until it is let go.
struct Slow {
    decisions: AtomicU64,
    go: Mutex<Option<Receiver<()>>>,
}

impl Evidence for Slow {
    fn findings(&self, _: &Question<'_>, _: &mut dyn FnMut(&Finding<'_>)) {
        self.decisions.fetch_add(1, Ordering::SeqCst);
        let go = self.go.lock().unwrap().take();
        if let Some(go) = go {
            go.recv().unwrap();
        }
    }
}

fn slow() -> (Arc<Slow>, mpsc::Sender<()>) {
    let (sender, go) = mpsc::channel();
    (Arc::new(Slow { decisions: AtomicU64::new(0), go: Mutex::new(Some(go)) }), sender)
}

/// 32 threads meet one new shape at the same time: it is decided once, and all get that decision.
#[test]
fn threads_that_miss_together_decide_once() {
    let engine = host_house([host_spec("alpha.x"), host_spec("beta.x")]);
    let (slow, go) = slow();
    engine.set_evidence(Some(slow.clone()));
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                arrived.fetch_add(1, Ordering::SeqCst);
                assert_eq!(Norm::default().serve(&engine).unwrap(), "alpha.x");
            });
        }
        while arrived.load(Ordering::SeqCst) < 32 || slow.decisions.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        go.send(()).unwrap();
    });
    assert_eq!(slow.decisions.load(Ordering::SeqCst), 1);
    assert_eq!(engine.cached_decisions(), 1);
}

/// While one shape is being decided slowly, another one is decided and served: nobody waits for a stranger.
#[test]
fn a_slow_decision_does_not_hold_up_other_shapes() {
    let engine = host_house([host_spec("alpha.x")]);
    let (slow, go) = slow();
    engine.set_evidence(Some(slow.clone()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Norm::hidden(64).serve(&engine).unwrap());
        while slow.decisions.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // One of these shapes may fall on the same lock as the first; not all of them can.
        let served = mpsc::channel::<String>();
        for hidden in 65..97 {
            let (engine, sender) = (&engine, served.0.clone());
            scope.spawn(move || sender.send(Norm::hidden(hidden).serve(engine).unwrap()));
        }
        assert_eq!(served.1.recv().unwrap(), "alpha.x");
        assert!(!waiting.is_finished());
        go.send(()).unwrap();
        assert_eq!(waiting.join().unwrap(), "alpha.x");
    });
    assert_eq!(slow.decisions.load(Ordering::SeqCst), 33);
}

/// 64 threads meet 100 shapes in different orders: each shape is decided once.
#[test]
fn each_of_many_shapes_is_decided_once() {
    let engine = host_house([host_spec("alpha.x")]);
    let (slow, go) = slow();
    go.send(()).unwrap();
    engine.set_evidence(Some(slow.clone()));
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
    assert_eq!(slow.decisions.load(Ordering::SeqCst), 100);
    assert_eq!(engine.cached_decisions(), 100);
}

/// Whoever is asked for figures asks the engine in turn, from several threads: nobody waits for himself.
#[test]
fn evidence_that_asks_the_engine_does_not_hang() {
    struct Asks(Engine, AtomicU64);
    impl Evidence for Asks {
        fn findings(&self, question: &Question<'_>, _: &mut dyn FnMut(&Finding<'_>)) {
            if self.1.fetch_add(1, Ordering::SeqCst) < 40 {
                assert_eq!(self.0.decide(question.operation, question.context).unwrap(), "alpha.x");
            }
        }
    }
    let engine = host_house([host_spec("alpha.x")]);
    let asks = Arc::new(Asks(engine.clone(), AtomicU64::new(0)));
    engine.set_evidence(Some(asks.clone()));
    thread::scope(|scope| {
        for hidden in 0..8 {
            let engine = &engine;
            scope.spawn(move || assert_eq!(Norm::hidden(64 + hidden).serve(engine).unwrap(), "alpha.x"));
        }
    });
    assert!(asks.1.load(Ordering::SeqCst) >= 8);
    engine.set_evidence(None);
}

/// Notes what is wanted compiled.
#[derive(Default)]
struct Wanted(Mutex<Vec<String>>);

impl JitRequests for Wanted {
    fn request(&self, kernel: &str, _: &'static OperationInfo, _: &Context) {
        self.0.lock().unwrap().push(kernel.to_owned());
    }
}

/// 64 threads meet a shape whose best kernel is cold: it is asked for in the background once, and none of them waits.
#[test]
fn a_cold_kernel_is_asked_for_once() {
    let mut jit = host_spec("jit.x").priority(90);
    jit.jit = true;
    let engine = host_house([jit, host_spec("ready.x")]);
    let wanted = Arc::new(Wanted::default());
    engine.set_jit(Some(wanted.clone()));
    hammer(64, |_| assert_eq!(Norm::default().serve(&engine).unwrap(), "ready.x"), || {});
    assert_eq!(*wanted.0.lock().unwrap(), ["jit.x"]);
}

/// A kernel becomes warm while 16 threads are serving: each sees the old one until then and the new one from then on.
#[test]
fn a_kernel_becomes_warm_for_all_threads_at_once() {
    let mut jit = host_spec("jit.x").priority(90);
    jit.jit = true;
    let engine = host_house([jit, host_spec("ready.x")]);
    let rounds = super::Rounds::default();
    hammer(
        16,
        |_| {
            let (who, possible) = rounds.during(|| Norm::default().serve(&engine).unwrap());
            let fits = possible.clone().any(|round| who == if round == 0 { "ready.x" } else { "jit.x" });
            assert!(fits, "{who} in {possible:?}");
        },
        || {
            let call = Norm::default();
            rounds.enter(1, || engine.mark_warm("jit.x", call.operation(), &call.context().unwrap()));
        },
    );
    assert_eq!(Norm::default().serve(&engine).unwrap(), "jit.x");
}

fn bounded(max_entries: usize) -> Engine {
    let engine = host_house([
        host_spec("small.x").limit("hidden <= 500", ReasonCode::AxisLimit).priority(90),
        host_spec("large.x"),
    ]);
    let cache = CacheConfig { max_entries, ..CacheConfig::default() };
    engine.set_policy(Policy { cache: Sourced::new(cache, "layerzero.yaml:1"), ..Policy::default() });
    engine
}

/// 16 threads meet far more shapes than the cache has room for: it never holds more than its bound, and every answer is right.
#[test]
fn the_cache_keeps_its_bound_under_many_threads() {
    let engine = bounded(100);
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

/// The cache grows from its first size to its bound under 16 threads: what fits is kept, and then nothing moves any more.
#[test]
fn the_cache_grows_under_many_threads_and_then_rests() {
    let engine = bounded(4000);
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
