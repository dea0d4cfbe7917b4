//! JIT kernels: never compiled inside a call, but in the background or ahead of time; results are persisted.

use std::fs;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine_support::{Does, Shape, attend, entry, run, spec};
use lz_core::kernel::{CompileRequest, Compiled};
use lz_core::{KernelEntry, KernelError, ReasonCode};
use lz_engine::Engine;
use lz_engine::jit::{JitConfig, JitQueue, Manifest, ManifestState};
use lz_test_support::Folder;

const LONG: Duration = Duration::from_secs(60);

fn compiled_by(
    compile: impl Fn(&CompileRequest<'_>) -> Result<Compiled, KernelError> + Send + Sync + 'static,
) -> Engine {
    let engine = Engine::new();
    let mut slow = spec("jit.attend").priority(90);
    slow.jit = true;
    let jit = KernelEntry::new(slow, Does(Box::new(|| Ok(())))).of(attend()).compiled_by(compile);
    engine.register([jit, entry(spec("plain.attend").priority(10))]).unwrap();
    engine
}

/// An engine whose compiler counts its calls.
fn counting() -> (Engine, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let engine = compiled_by(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        assert_eq!(request.spec.id, "jit.attend");
        assert!(request.call().contains(&("head_dim".to_owned(), "64".to_owned())));
        Ok(Compiled { artifacts: vec!["key-1".to_owned()] })
    });
    (engine, count)
}

fn shape(seq: i64) -> Shape {
    Shape { seq, ..Shape::default() }
}

#[test]
fn cold_kernel_is_compiled_in_the_background_and_promoted() {
    let (engine, count) = counting();
    let queue = JitQueue::start(&engine, "demo", JitConfig::default());
    assert_eq!(run(&engine, &shape(64)).unwrap(), "plain.attend", "the first call does not wait");
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(run(&engine, &shape(64)).unwrap(), "jit.attend");
    assert_eq!(run(&engine, &shape(65)).unwrap(), "jit.attend", "the same bucket");
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(run(&engine, &shape(4000)).unwrap(), "plain.attend", "another bucket");
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(run(&engine, &shape(4000)).unwrap(), "jit.attend");
    let counters = queue.counters();
    assert_eq!((counters.wanted, counters.compiled, counters.dropped, counters.failed), (2, 2, 0, 0));
    queue.stop();
}

#[test]
fn ineligible_kernel_is_not_compiled() {
    let engine = Engine::new();
    let mut elsewhere = spec("jit.elsewhere").priority(90);
    (elsewhere.jit, elsewhere.platform) = (true, lz_core::device::Platform::Cuda);
    let compile = |_: &CompileRequest<'_>| Err(KernelError::failed("there is no such device"));
    let jit = KernelEntry::new(elsewhere, Does(Box::new(|| Ok(())))).of(attend()).compiled_by(compile);
    engine.register([jit, entry(spec("plain.attend").priority(10))]).unwrap();
    let queue = JitQueue::start(&engine, "demo", JitConfig::default());
    assert_eq!(run(&engine, &shape(64)).unwrap(), "plain.attend");
    assert!(queue.wait_until_idle(LONG));
    assert_eq!((queue.counters().wanted, queue.counters().failed), (0, 0));
    assert!(engine.health().has_no_records());
    queue.stop();
}

#[test]
fn call_never_waits_for_a_hanging_compiler() {
    let (release, gate): (Sender<()>, Receiver<()>) = channel();
    let gate = Mutex::new(gate);
    let engine = compiled_by(move |_| {
        gate.lock().unwrap().recv().ok();
        Ok(Compiled::default())
    });
    let queue = JitQueue::start(&engine, "demo", JitConfig::default());
    for _ in 0..100 {
        assert_eq!(run(&engine, &shape(64)).unwrap(), "plain.attend");
    }
    assert_eq!(queue.counters().wanted, 1, "asked for once");
    release.send(()).unwrap();
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(run(&engine, &shape(64)).unwrap(), "jit.attend");
}

#[test]
fn full_queue_drops_and_counts_the_oldest() {
    let (release, gate): (Sender<()>, Receiver<()>) = channel();
    let gate = Mutex::new(gate);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let engine = compiled_by(move |request| {
        gate.lock().unwrap().recv().ok();
        let heads = request.call().into_iter().find(|(name, _)| name == "heads").unwrap().1;
        noted.lock().unwrap().push(heads);
        Ok(Compiled::default())
    });
    let queue = JitQueue::start(&engine, "demo", JitConfig { queue: 2, ..JitConfig::default() });
    let want = |heads| run(&engine, &Shape { heads, ..Shape::default() }).unwrap();
    want(1);
    // The worker runs the first; of the next four only the last two fit into the queue.
    while queue.waiting() > 0 {
        std::thread::yield_now();
    }
    (2..6).for_each(|heads| assert_eq!(want(heads), "plain.attend"));
    assert_eq!((queue.waiting(), queue.counters().dropped), (2, 2));
    let why = queue.last_dropped().expect("two were dropped");
    assert_eq!(
        why.to_string(),
        "[COMPILE_QUEUE_FULL] requires at most 2 waiting, found one more, so that jit.attend was dropped"
    );
    drop(release);
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(*seen.lock().unwrap(), ["1", "4", "5"]);
    // A dropped request is made again when its shape occurs again.
    want(2);
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(want(2), "jit.attend");
}

#[test]
fn failed_compilation_is_recorded_and_retried_after_backoff() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let engine = compiled_by(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Err(KernelError::failed("the toolchain is missing")),
        1 => panic!("the compiler is broken"),
        _ => Ok(Compiled::default()),
    });
    let config = JitConfig { backoff: Duration::from_millis(1), ..JitConfig::default() };
    let queue = JitQueue::start(&engine, "demo", config);
    assert_eq!(run(&engine, &shape(64)).unwrap(), "plain.attend");
    while queue.counters().compiled == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    assert_eq!(queue.counters().failed, 2);
    assert!(!engine.health().has_no_records(), "health knows of the failures");
    assert_eq!(run(&engine, &shape(64)).unwrap(), "jit.attend");
}

#[test]
fn no_compilation_during_backoff() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let engine = compiled_by(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(KernelError::failed("the toolchain is missing"))
    });
    let queue = JitQueue::start(&engine, "demo", JitConfig { backoff: LONG, ..JitConfig::default() });
    for _ in 0..50 {
        run(&engine, &shape(64)).unwrap();
        assert!(queue.wait_until_idle(LONG));
    }
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    let entry = queue.manifest().entries().next().cloned().unwrap();
    assert!(matches!(&entry.state, ManifestState::Failed(why) if why.contains("the toolchain is missing")));
}

#[test]
fn degraded_engine_does_not_compile_in_the_background() {
    let (engine, count) = counting();
    let queue = JitQueue::start(&engine, "demo", JitConfig::default());
    while engine.health().level().allows_background() {
        engine.health().record_engine_fault("a test");
    }
    assert_eq!(run(&engine, &shape(64)).unwrap(), "plain.attend");
    assert!(!queue.wait_until_idle(Duration::from_millis(120)) || queue.counters().wanted == 0);
    assert_eq!(count.load(Ordering::SeqCst), 0);
    // An explicit warm-up still compiles.
    let items = engine.cold_kernels(&[(attend(), shape(64).context())]);
    let report = engine.warmup(&items, &mut |_| ControlFlow::Continue(()));
    assert_eq!((report.compiled.len(), count.load(Ordering::SeqCst)), (1, 1));
}

#[test]
fn kernel_without_a_compiler_stays_cold_with_a_reason() {
    let engine = Engine::new();
    let mut slow = spec("jit.attend").priority(90);
    slow.jit = true;
    engine.register([entry(slow), entry(spec("plain.attend"))]).unwrap();
    let queue = JitQueue::start(&engine, "demo", JitConfig::default());
    for _ in 0..3 {
        assert_eq!(run(&engine, &shape(64)).unwrap(), "plain.attend");
        assert!(queue.wait_until_idle(LONG));
    }
    assert_eq!(queue.counters().impossible, 1);
}

#[test]
fn warm_up_reports_progress_and_can_be_cancelled() {
    let (engine, count) = counting();
    let calls: Vec<_> = [16, 1000, 4000].map(|seq| (attend(), shape(seq).context())).into();
    let items = engine.cold_kernels(&calls);
    assert_eq!(items.len(), 3);
    let mut reported = Vec::new();
    let report = engine.warmup(&items, &mut |progress| {
        reported.push((progress.done, progress.total, progress.next.to_owned()));
        if progress.done < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(report.cancelled);
    assert_eq!((report.compiled.len(), reported.len(), count.load(Ordering::SeqCst)), (2, 3, 2));
    assert_eq!(report.compiled[0].1, ["key-1"]);
    assert_eq!(run(&engine, &shape(16)).unwrap(), "jit.attend", "what was compiled stays warm");
    assert_eq!(run(&engine, &shape(4000)).unwrap(), "plain.attend");
    let report = engine.warmup(&items, &mut |_| ControlFlow::Continue(()));
    assert_eq!((report.compiled.len(), report.already_warm), (1, 2));
    assert!(engine.cold_kernels(&calls).is_empty());
}

#[test]
fn manifest_warms_up_the_next_run() {
    let folder = Folder::new();
    let config = JitConfig { manifest: Some(folder.file("shapes.json")), ..JitConfig::default() };
    let (engine, _) = counting();
    let queue = JitQueue::start(&engine, "demo", config.clone());
    run(&engine, &shape(64)).unwrap();
    assert!(queue.wait_until_idle(LONG));
    queue.stop();

    let (engine, count) = counting();
    let queue = JitQueue::start(&engine, "demo", config.clone());
    let items = queue.manifest().items(&engine.registry());
    assert_eq!(items.len(), 1);
    assert_eq!(items[0].context, shape(64).context(), "the call comes back bit for bit");
    let report = engine.warmup(&items, &mut |_| ControlFlow::Continue(()));
    assert_eq!((report.compiled.len(), count.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(run(&engine, &shape(64)).unwrap(), "jit.attend", "the first call is fast");
    queue.stop();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["shapes.json"], "no half-written file is left");

    let (other, _) = counting();
    other.unregister_backend("jit");
    let (manifest, warning) = Manifest::load(&folder.file("shapes.json"), "demo", LONG);
    assert_eq!(warning, None);
    assert!(manifest.items(&other.registry()).is_empty(), "what is gone is left out");
}

#[test]
fn unusable_manifest_is_renamed_with_a_warning() {
    let folder = Folder::new();
    let load = || Manifest::load(&folder.file("shapes.json"), "demo", LONG);
    assert_eq!(load(), (Manifest::new("demo"), None), "none is no mistake");

    let mut manifest = Manifest::new("demo");
    manifest.note("jit.attend", "1", attend(), &shape(64).context(), ManifestState::Wanted);
    manifest.save(&folder.file("shapes.json")).unwrap();
    let text = fs::read_to_string(folder.file("shapes.json")).unwrap();
    for cut in [0, 1, text.len() / 2, text.len() - 3] {
        fs::write(folder.file("shapes.json"), &text[..cut]).unwrap();
        let (empty, warning) = load();
        assert_eq!(empty.entries().count(), 0);
        assert!(warning.is_some_and(|warning| warning.contains("is damaged")), "{cut}");
        assert!(!folder.file("shapes.json").exists(), "it was renamed");
    }

    fs::write(folder.file("shapes.json"), text.replace("\"version\": 1,", "\"version\": 2,")).unwrap();
    let (later, warning) = load();
    assert!(warning.is_some_and(|warning| warning.contains("has version 2")));
    assert!(
        later.save(&folder.file("shapes.json")).is_err()
            && manifest.save(&folder.file("shapes.json")).is_err(),
        "it is left alone"
    );

    fs::write(folder.file("shapes.json"), &text).unwrap();
    let (_, warning) = Manifest::load(&folder.file("shapes.json"), "another", LONG);
    assert!(warning.is_some_and(|warning| warning.contains("is for model `demo`")));
    let old = text.lines().map(|line| match line.trim_start().starts_with("\"written_at\"") {
        true => "\"written_at\": 1000000000,".to_owned(),
        false => line.to_owned(),
    });
    fs::write(folder.file("shapes.json"), old.collect::<Vec<_>>().join("\n")).unwrap();
    let (stale, warning) = load();
    assert_eq!(stale.entries().count(), 0);
    assert!(warning.is_some_and(|warning| warning.contains("days old and is ignored")));
}

#[test]
fn concurrent_manifest_writers_are_merged() {
    let folder = Folder::new();
    let note = |kernel: &str| {
        let mut manifest = Manifest::new("demo");
        manifest.note(kernel, "1", attend(), &shape(64).context(), ManifestState::Compiled);
        manifest
    };
    note("first.attend").save(&folder.file("shapes.json")).unwrap();
    note("second.attend").save(&folder.file("shapes.json")).unwrap();
    let (both, _) = Manifest::load(&folder.file("shapes.json"), "demo", LONG);
    let kernels: Vec<&str> = both.entries().map(|entry| entry.kernel.as_str()).collect();
    assert_eq!(kernels, ["first.attend", "second.attend"]);
}

#[test]
fn unwritable_manifest_path_only_warns() {
    let folder = Folder::new();
    fs::write(folder.file("file"), "").unwrap();
    let config = JitConfig { manifest: Some(folder.file("file/shapes.json")), ..JitConfig::default() };
    let (engine, _) = counting();
    let queue = JitQueue::start(&engine, "demo", config);
    run(&engine, &shape(64)).unwrap();
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(run(&engine, &shape(64)).unwrap(), "jit.attend");
    queue.stop();
}

#[test]
fn policy_settings_configure_jit() {
    let engine = Engine::new();
    let config = JitConfig::of(|key| engine.settings().value(key));
    assert!(config.background && config.queue == 1000);
    assert_eq!(config.manifest_stale, Duration::from_secs(7 * 24 * 60 * 60));
    assert!(config.manifest.is_some_and(|path| path.ends_with(".cache/layerzero/shape_manifest.json")));
}

#[test]
fn solved_table_contains_jit_artifacts() {
    let (engine, count) = counting();
    let work = lz_engine::solver::Work::new(attend(), shape(64).context()).range("batch", 1..=4);
    let problem = lz_engine::solver::Problem {
        model_id: "demo".to_owned(),
        works: vec![work.range("seq", 1..=100)],
        compile: true,
        ..Default::default()
    };
    let solution = engine.solve(&problem, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 2, "one bucket of batch 1, one of 2 to 4");
    assert!(solution.text.contains("key-1") && solution.text.contains("jit.attend"), "{}", solution.text);
    assert_eq!(run(&engine, &shape(64)).unwrap(), "jit.attend");
    assert!(!engine.explain(attend(), &shape(64).context()).candidates.iter().any(|candidate| {
        candidate.reasons.iter().any(|reason| reason.code == ReasonCode::JitCold.as_str())
    }));
}
