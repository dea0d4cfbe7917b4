//! Policy overlays of a thread: nested, dropped in any order, thread-local, never used outside.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::engine_support::{Shape, attend, engine, failing, run, spec};
use lz_core::run::on_stream;
use lz_core::{DType, Error, KernelError, ReasonCode};
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::layer::SettingInput;
use lz_engine::policy::overlay::Overlay;
use lz_engine::policy::{Policy, WithSource};

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn three() -> Engine {
    engine([
        spec("a.x").priority(60),
        spec("b.x").priority(50),
        spec("c.x").priority(40).dtype("T", &[DType::F32]),
        spec("reference.x"),
    ])
}

fn who(engine: &Engine) -> String {
    run(engine, &Shape::default()).unwrap()
}

#[test]
fn scoped_decisions_are_separate() {
    let engine = three();
    // Often enough that the thread cache answers on both sides.
    for _ in 0..3 {
        for _ in 0..40 {
            assert_eq!(who(&engine), "a.x");
        }
        let scope = engine.prefer(&names(&["b"])).unwrap();
        for _ in 0..40 {
            assert_eq!(who(&engine), "b.x");
        }
        assert_eq!(engine.decide(attend(), &Shape::default().context()).unwrap(), "b.x");
        assert_eq!(engine.which(attend(), &Shape::default().context()).unwrap().kernel, "b.x");
        assert_eq!(engine.explain(attend(), &Shape::default().context()).chosen(), Some("b.x"));
        drop(scope);
    }
    assert_eq!(who(&engine), "a.x");
}

#[test]
fn inner_scope_wins() {
    let engine = three();
    let outer = engine.scope(Overlay::new().lock("demo.attend", "b.x")).unwrap();
    {
        let _inner = engine.scope(Overlay::new().lock("demo.attend", "reference.x")).unwrap();
        assert_eq!(who(&engine), "reference.x");
        let _freed = engine.scope(Overlay::new().unlock("demo.attend")).unwrap();
        assert_eq!(who(&engine), "a.x");
        let _disabled = engine.disabled().unwrap();
        assert_eq!(who(&engine), "reference.x");
        let _enabled = mode::scope(ModeOverride::NONE.set(ModeFlag::Disabled, false));
        assert_eq!(who(&engine), "a.x");
    }
    assert_eq!(who(&engine), "b.x");
    drop(outer);
    assert_eq!(who(&engine), "a.x");
}

#[test]
fn scoped_lock_on_an_ineligible_kernel_is_an_error() {
    let engine = three();
    let _scope = engine.scope(Overlay::new().lock("demo.attend", "c.x")).unwrap();
    let error = run(&engine, &Shape::default()).unwrap_err();
    assert!(matches!(&error, Error::Locked { kernel, .. } if kernel == "c.x"), "{error}");
    assert!(error.has(ReasonCode::DtypeUnsupported));
}

#[test]
fn scope_applies_to_its_engine_and_its_simulated_devices() {
    let (one, other) = (three(), three());
    let _scope = one.prefer(&names(&["b"])).unwrap();
    for _ in 0..20 {
        assert_eq!((who(&one), who(&other)), ("b.x".to_owned(), "a.x".to_owned()));
    }
    let _of_the_other = other.scope(Overlay::new().deny(&names(&["a", "b"]))).unwrap();
    for _ in 0..20 {
        assert_eq!((who(&one), who(&other)), ("b.x".to_owned(), "reference.x".to_owned()));
    }
    let laptop = one.with_device(lz_device::detect_cpu());
    assert_eq!(laptop.which(attend(), &Shape::default().context()).unwrap().kernel, "b.x");
}

#[test]
fn policy_change_applies_inside_scopes() {
    let engine = three();
    let _scope = engine.scope(Overlay::new().avoid(&names(&["a"]))).unwrap();
    assert_eq!(who(&engine), "b.x");
    engine.configure([("deny".to_owned(), SettingInput::Texts(names(&["b"])))]).unwrap();
    assert_eq!(who(&engine), "a.x", "avoided, but of those that are left it is the best");
    engine.configure([("deny".to_owned(), SettingInput::Texts(Vec::new()))]).unwrap();
    assert_eq!(who(&engine), "b.x");
}

#[test]
fn scope_controls_fallbacks_and_memory() {
    let failed = || Err(KernelError::failed("no"));
    let engine = engine([spec("reference.x")]);
    engine.register([failing(spec("a.x").priority(60), failed)]).unwrap();
    assert_eq!(who(&engine), "reference.x");
    let alone = Overlay::new().set("fallback_enabled", SettingInput::Bool(false)).unwrap();
    {
        let _scope = engine.scope(alone).unwrap();
        let error = run(&engine, &Shape::default()).unwrap_err();
        assert!(error.has(ReasonCode::FallbackDisallowed), "{error}");
    }
    assert_eq!(who(&engine), "reference.x");
    let mut hungry = spec("hungry.x").priority(90);
    hungry.workspace = Some("2 * 1024 * 1024".to_owned());
    engine.register([crate::engine_support::entry(hungry)]).unwrap();
    assert_eq!(who(&engine), "hungry.x");
    let _small =
        engine.scope(Overlay::new().set("memory_headroom_mb", SettingInput::Int(1)).unwrap()).unwrap();
    assert_eq!(engine.which(attend(), &Shape::default().context()).unwrap().kernel, "a.x");
}

#[test]
fn settings_include_the_thread_overlay() {
    let engine = three();
    let value = |key: &str| {
        let found = engine.config().into_iter().find(|entry| entry.key == key).unwrap();
        (found.value, found.source.to_string())
    };
    assert_eq!(value("enabled"), ("true".to_owned(), "default".to_owned()));
    let _scope = engine.scope(Overlay::new().disabled().prefer(&names(&["b"]))).unwrap();
    assert_eq!(value("enabled"), ("false".to_owned(), "lz.disabled".to_owned()));
    assert_eq!(value("prefer"), ("b".to_owned(), "lz.prefer".to_owned()));
    let elsewhere = std::thread::scope(|threads| {
        threads.spawn(|| engine.setting("enabled").unwrap().source.to_string()).join().unwrap()
    });
    assert_eq!(elsewhere, "default");
}

#[test]
fn scoped_and_unscoped_threads_do_not_interfere() {
    const ROUNDS: usize = 300;
    let engine = three();
    let stop = AtomicBool::new(false);
    let changes = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..8)
            .map(|number: usize| {
                let engine = &engine;
                threads.spawn(move || {
                    for round in 0..ROUNDS {
                        let wanted = ["a.x", "b.x", "reference.x"][(number + round) % 3];
                        let overlay = match wanted {
                            "a.x" => None,
                            other => Some(Overlay::new().lock("demo.attend", other)),
                        };
                        let _scope = overlay.map(|overlay| engine.scope(overlay).unwrap());
                        for _ in 0..5 {
                            assert_eq!(who(engine), wanted);
                        }
                    }
                })
            })
            .collect();
        let changer = threads.spawn(|| {
            loop {
                let on = changes.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
                engine.set_policy(Policy { strict_mode: WithSource::new(on, "test"), ..Policy::default() });
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::yield_now();
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        changer.join().unwrap();
    });
    assert!(changes.load(Ordering::Relaxed) > 0);
}

#[test]
fn stream_of_the_caller_reaches_the_kernel() {
    let engine = three();
    let stream = || {
        let mut seen = None;
        engine
            .dispatch(attend(), &Shape::default().context(), &mut |_, run| {
                seen = Some(run.stream());
                Ok(())
            })
            .unwrap();
        seen.unwrap()
    };
    assert_eq!(stream(), 0);
    let outer = on_stream(0xdead);
    assert_eq!(stream(), 0xdead);
    {
        let _inner = on_stream(0xbeef);
        assert_eq!(stream(), 0xbeef);
    }
    assert_eq!(stream(), 0xdead);
    drop(outer);
    assert_eq!(stream(), 0);
}
