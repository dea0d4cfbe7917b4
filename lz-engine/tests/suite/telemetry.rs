//! Counters are exact, fallbacks are logged once, observation covers every call, and synchronization surfaces errors.

use std::sync::{Arc, Mutex};

use crate::engine_support::{Does, Shape, attend, engine, entry, failing, run, spec};
use lz_core::context::FieldKind;
use lz_core::device::Platform;
use lz_core::{Context, DType, Error, KernelEntry, KernelError, KernelSpec, OperationInfo, ReasonCode, Run};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;
use lz_engine::telemetry::{ObserveOptions, Synchronize};

#[test]
fn every_call_is_counted_once_on_every_path() {
    let engine = engine([spec("a.x")]);
    for _ in 0..1000 {
        run(&engine, &Shape::default()).unwrap();
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.selections, metrics.cache_misses, metrics.cache_hits), (1000, 1, 999));
    assert_eq!((metrics.executions, metrics.failures, metrics.refusals), (1000, 0, 0));
    assert!(metrics.cache_hits_by_level.thread > 900, "{metrics:?}");
    assert_eq!((metrics.active_kernels, metrics.cache_size), (1, 1));
    assert_eq!(metrics.execution_latency.count, 0, "execution times are not enabled");

    std::thread::scope(|threads| {
        // Joined one by one: the end of a scope does not wait for what threads flush while they end.
        let count = || (0..250).for_each(|_| drop(run(&engine, &Shape::default())));
        let workers: Vec<_> = (0..4).map(|_| threads.spawn(count)).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    assert_eq!(engine.metrics().selections, 2000);
    assert_eq!(engine.metrics().executions, 2000);
}

/// A thread that has never made a call finds it in the shared caches: first among decisions, then among whole calls.
#[test]
fn shared_caches_answer_other_threads() {
    let engine = engine([spec("a.x")]);
    let levels_after_another_thread = || {
        // The first call of a thread reads the snapshot.
        let shapes = [Shape { head_dim: 32, ..Shape::default() }, Shape::default()];
        std::thread::scope(|threads| {
            threads.spawn(|| shapes.iter().for_each(|shape| drop(run(&engine, shape)))).join().unwrap();
        });
        let levels = engine.metrics().cache_hits_by_level;
        (levels.decision, levels.exact)
    };
    assert_eq!(levels_after_another_thread(), (0, 0), "the first calls decide");
    assert_eq!(levels_after_another_thread(), (2, 0), "their decisions are found");
    assert_eq!(levels_after_another_thread(), (3, 1), "and then a whole call");
    assert_eq!(levels_after_another_thread(), (4, 2));
}

/// Four calls of an operation fit into the cache of a thread.
#[test]
fn a_thread_remembers_several_calls() {
    let engine = engine([spec("a.x")]);
    let shapes = [16, 32, 64, 128].map(|head_dim| Shape { head_dim, ..Shape::default() });
    for _ in 0..100 {
        shapes.iter().for_each(|shape| drop(run(&engine, shape)));
    }
    let metrics = engine.metrics();
    assert!(metrics.cache_hits_by_level.thread > 200, "{metrics:?}");
}

#[test]
fn thread_with_two_engines_counts_for_each() {
    let (one, other) = (engine([spec("a.x")]), engine([spec("b.x")]));
    for _ in 0..50 {
        run(&one, &Shape::default()).unwrap();
        run(&one, &Shape::default()).unwrap();
        run(&other, &Shape::default()).unwrap();
    }
    assert_eq!((one.metrics().selections, other.metrics().selections), (100, 50));
}

#[test]
fn failures_and_fallbacks_are_always_counted() {
    let engine = engine([spec("reference.x")]);
    engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
    for _ in 0..3 {
        assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
    }
    let metrics = engine.metrics();
    assert_eq!(metrics.fallbacks_total(), 3);
    assert_eq!(engine.fallbacks(), 3);
    assert_eq!((metrics.fallbacks[0].operation.as_str(), metrics.fallbacks[0].count), ("demo.attend", 3));
    assert_eq!((metrics.failures, metrics.executions), (3, 6));
    let text = engine.metrics_text();
    assert!(text.contains("lz_fallback_total{operation=\"demo.attend\",kernel=\"bad.x\"} 3"), "{text}");
}

#[test]
fn calls_without_a_kernel_are_refusals() {
    let mut picky = spec("a.x");
    picky.deterministic = false;
    let engine = engine([picky]);
    engine.configure([("deterministic".to_owned(), SettingInput::Bool(true))]).unwrap();
    assert!(run(&engine, &Shape::default()).is_err());
    let metrics = engine.metrics();
    assert_eq!((metrics.selections, metrics.refusals, metrics.executions), (1, 1, 0));
}

#[test]
fn timing_samples_the_configured_share() {
    let engine = engine([spec("a.x")]);
    engine.observe(ObserveOptions { time_every: 1, ..ObserveOptions::default() });
    for _ in 0..30 {
        run(&engine, &Shape::default()).unwrap();
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.selection_latency.count, metrics.execution_latency.count), (30, 30));
    engine.observe(ObserveOptions { time_every: 10, ..ObserveOptions::default() });
    for _ in 0..1000 {
        run(&engine, &Shape::default()).unwrap();
    }
    let sampled = engine.metrics().execution_latency.count - 30;
    assert!((100..110).contains(&sampled), "{sampled}");
    assert_eq!(engine.metrics().selections, 1030);
}

#[test]
fn calls_are_labeled_on_every_path() {
    let engine = engine([spec("reference.x")]);
    engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
    for _ in 0..3 {
        run(&engine, &Shape::default()).unwrap();
    }
    engine.unregister_backend("bad");
    for _ in 0..1000 {
        run(&engine, &Shape::default()).unwrap();
    }
    let metrics = engine.metrics();
    let labeled = |kernel: &str| metrics.calls.iter().find(|one| one.kernel == kernel).map(|one| one.count);
    assert_eq!((labeled("reference.x"), labeled("bad.x")), (Some(1003), Some(3)), "{metrics:?}");
    assert!(metrics.calls.iter().all(|one| one.operation == "demo.attend"));
    let levels = metrics.cache_hits_by_level;
    assert_eq!(levels.thread + levels.exact + levels.decision, metrics.cache_hits);
}

#[test]
fn timed_calls_are_labeled_and_every_call_is_recorded() {
    let engine = engine([spec("a.x")]);
    engine.configure([("telemetry.sample_every".to_owned(), SettingInput::Int(10))]).unwrap();
    for _ in 0..1000 {
        run(&engine, &Shape::default()).unwrap();
    }
    let latencies = engine.metrics().kernel_latency;
    let [only] = latencies.as_slice() else { panic!("{latencies:?}") };
    assert_eq!((only.kernel.as_str(), only.backend.as_str()), ("a.x", "a"));
    assert!((100..110).contains(&only.latency.count), "{only:?}");
    engine.start_recording();
    run(&engine, &Shape::default()).unwrap();
    run(&engine, &Shape::default()).unwrap();
    let json = engine.stop_recording().expect("a recording");
    let trace: serde_json::Value = serde_json::from_str(&json).unwrap();
    let names: Vec<&str> =
        trace["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["name"].as_str()).collect();
    let call = ["select demo.attend", "demo.attend→a.x"];
    assert_eq!(names, [&["process_name"][..], &call, &call].concat());
    assert_eq!(engine.stop_recording(), None);
}

#[test]
fn circuit_changes_are_counted_by_state() {
    let engine = engine([spec("reference.x")]);
    engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
    engine.configure([("circuit_breaker.failure_threshold".to_owned(), SettingInput::Int(1))]).unwrap();
    run(&engine, &Shape::default()).unwrap();
    let transitions = engine.metrics().circuit_transitions;
    let opened = transitions.iter().find(|one| one.to == "open" && one.name == "bad.x");
    assert_eq!(opened.map(|one| (one.scope, one.count)), Some(("kernel", 1)), "{transitions:?}");
}

struct Faulty(Mutex<Vec<usize>>);

impl Synchronize for Faulty {
    fn synchronize(&self, stream: usize) -> Result<(), KernelError> {
        let mut seen = self.0.lock().unwrap();
        seen.push(stream);
        if seen.len() == 3 { Err(KernelError::failed("an illegal address, found late")) } else { Ok(()) }
    }
}

#[test]
fn debug_synchronizes_after_each_call() {
    let engine = engine([spec("a.x")]);
    let device = Arc::new(Faulty(Mutex::default()));
    engine.set_synchronize(Some(Arc::clone(&device) as Arc<dyn Synchronize>));
    run(&engine, &Shape::default()).unwrap();
    assert!(device.0.lock().unwrap().is_empty());
    engine.configure([("debug".to_owned(), SettingInput::Bool(true))]).unwrap();
    let _stream = lz_core::run::on_stream(7);
    run(&engine, &Shape::default()).unwrap();
    run(&engine, &Shape::default()).unwrap();
    let error = run(&engine, &Shape::default()).unwrap_err();
    assert!(matches!(&error, Error::KernelExecution { kernel, .. } if kernel == "a.x"), "{error}");
    assert!(error.has(ReasonCode::KernelFailed));
    assert_eq!(*device.0.lock().unwrap(), [7, 7, 7]);
}

/// Collects spans and events by name.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Recorder {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        self.0.lock().unwrap().push(format!("span {}", span.metadata().name()));
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn seen_by(watch: ObserveOptions, calls: usize) -> Vec<String> {
    let engine = engine([spec("reference.x")]);
    engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
    engine.observe(watch);
    let recorder = Recorder::default();
    tracing::subscriber::with_default(recorder.clone(), || {
        (0..calls).for_each(|_| drop(run(&engine, &Shape::default())));
    });
    recorder.0.lock().unwrap().clone()
}

fn count(seen: &[String], what: &str) -> usize {
    seen.iter().filter(|one| one.as_str() == what).count()
}

#[test]
fn spans_and_logs_are_optional_and_fallbacks_logged_once() {
    let quiet = seen_by(ObserveOptions::default(), 4);
    assert_eq!(
        (count(&quiet, "kernel failed; used fallback"), count(&quiet, "selected")),
        (1, 0),
        "{quiet:?}"
    );
    assert_eq!(count(&quiet, "span lz.dispatch"), 0);
    let loud =
        seen_by(ObserveOptions { spans: true, log: true, verbose: true, ..ObserveOptions::default() }, 4);
    assert_eq!((count(&loud, "kernel failed; used fallback"), count(&loud, "selected")), (4, 4), "{loud:?}");
    assert_eq!((count(&loud, "span lz.select"), count(&loud, "span lz.dispatch")), (4, 8));
}

#[test]
fn simulated_engine_has_its_own_counters() {
    let engine = engine([spec("a.x")]);
    engine.register([entry(spec("b.x"))]).unwrap();
    run(&engine, &Shape::default()).unwrap();
    let imagined = engine.with_device(lz_device::detect_cpu());
    assert!(run(&imagined, &Shape::default()).is_err());
    assert_eq!(engine.metrics().selections, 1);
    assert!(imagined.which(attend(), &Shape::default().context()).is_ok());
}

const OTHER: &str = r#"
operation: demo.other
version: 1
summary: Another one.
doc: "output = x"
axes:
  n: { role: count, select: ignored, fuzz: 1..4 }
types:
  T: [f32]
inputs:
  x: { shape: [n], dtype: T, doc: "Something." }
outputs:
  output: { shape: [n], dtype: T }
semantics: { nan: propagate }
equivalence:
  close: { f32: [1e-5, 1e-5] }
workloads:
  small: { n: 1, T: f32 }
"#;

/// How many of these calls were answered from the thread cache.
fn thread_cache_hits(engine: &Engine, operation: &'static OperationInfo, contexts: &[Context]) -> u64 {
    let before = engine.metrics().cache_hits_by_level.thread;
    for context in contexts {
        engine.dispatch(operation, context, &mut |_, _| Ok(())).expect("its kernel runs every call");
    }
    engine.metrics().cache_hits_by_level.thread - before
}

#[test]
fn failure_disables_the_fast_path_of_its_operation_only() {
    let other = lz_core::dynamic::read_operation("demo/other.yaml", OTHER).expect("it is right");
    let engine = engine([spec("good.x")]);
    let another = KernelSpec::new("other.x", "demo.other", "other", "1", Platform::Cpu);
    let another = KernelEntry::new(another, Does(Box::new(|| Ok(())))).of(other);
    engine.register([another]).expect("it fits");
    let mut plain = Context::of(&other.fields);
    for field in other.fields.iter().filter(|field| field.kind == FieldKind::DType) {
        plain.set(field.store, DType::F32 as u64);
    }
    let (own, others) = (vec![Shape::default().context(); 200], vec![plain; 200]);
    assert!(
        thread_cache_hits(&engine, attend(), &own) > 150 && thread_cache_hits(&engine, other, &others) > 150
    );
    let broken = &mut |_: &KernelEntry, _: &mut Run<'_>| Err(KernelError::failed("broken"));
    engine.dispatch(attend(), &own[0], broken).expect_err("nothing else is there");
    assert_eq!(
        thread_cache_hits(&engine, attend(), &own[..2]),
        0,
        "each takes a permit until the failure is forgiven"
    );
    assert!(thread_cache_hits(&engine, other, &others) > 150);
}

#[test]
fn unread_scalars_are_not_part_of_the_key() {
    let scaled = |scale: u32| Shape { scale: f64::from(scale), ..Shape::default() }.context();
    let contexts: Vec<Context> = (0..200).map(scaled).collect();
    let engine = engine([spec("a.x")]);
    assert!(thread_cache_hits(&engine, attend(), &contexts) > 150);
    engine.register([entry(spec("b.x").limit("scale < 3", ReasonCode::SeqTooLong))]).expect("it fits");
    assert!(thread_cache_hits(&engine, attend(), &contexts) < 10);
}

#[test]
fn fallback_kernel_keeps_the_fast_path() {
    let engine = engine([spec("good.x").priority(10)]);
    let fails = || Err(KernelError::failed("no").before_writing());
    engine.register([failing(spec("bad.x").priority(90), fails)]).expect("it fits");
    while run(&engine, &Shape::default()).is_ok_and(|_| engine.health().all_closed()) {}
    let before = engine.metrics();
    for _ in 0..300 {
        assert_eq!(run(&engine, &Shape::default()).unwrap(), "good.x");
    }
    let after = engine.metrics();
    assert_eq!(after.selections - before.selections, 300);
    assert_eq!(after.failures, before.failures, "a kernel with an open circuit is not called");
    assert_eq!(
        after.cache_hits_by_level.thread, before.cache_hits_by_level.thread,
        "the thread cache is bypassed while a circuit is open"
    );
}
