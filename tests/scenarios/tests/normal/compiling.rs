//! JIT kernels: compiled in the background, ahead of time, and recorded for the next start.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lz_core::ReasonCode;
use lz_core::kernel::Compiled;
use lz_engine::Engine;
use lz_engine::jit::{JitConfig, JitQueue};
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{apply_policy, host_engine, host_spec, register};
use lz_scenarios::kernels::noop_kernel;
use lz_test_support::Folder;

/// A timeout that no test reaches.
const LONG: Duration = Duration::from_secs(120);

/// An engine with a fast JIT kernel and a precompiled one; returns the number of compilations as well.
fn jit_engine() -> (Engine, Arc<AtomicUsize>) {
    jit_engine_with_compile_hook(|| {})
}

/// Like `jit_engine`, with a hook that runs before each compilation.
fn jit_engine_with_compile_hook(wait: impl Fn() + Send + Sync + 'static) -> (Engine, Arc<AtomicUsize>) {
    let engine = host_engine([host_spec("plain.x")]);
    let count = Arc::new(AtomicUsize::new(0));
    let mut fast = host_spec("jit.x").priority(90);
    fast.jit = true;
    let counted = Arc::clone(&count);
    let compiled =
        noop_kernel(fast, &NORM_RMS).compiled_by(move |_: &lz_core::kernel::CompileRequest<'_>| {
            wait();
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Compiled::default())
        });
    register(&engine, [compiled]);
    (engine, count)
}

/// JIT cold start (flashinfer#2968): the first request is served by another kernel while the fast one
/// compiles in the background.
#[test]
fn a_cold_kernel_is_compiled_in_the_background() {
    let (engine, count) = jit_engine();
    let queue = JitQueue::start(&engine, "llama3-8b", JitConfig::default());
    assert_eq!(Norm::rows(16).serve(&engine).unwrap(), "plain.x");
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(Norm::rows(16).serve(&engine).unwrap(), "jit.x");
    assert_eq!((count.load(Ordering::SeqCst), queue.counters().compiled), (1, 1));
    queue.stop();
}

/// A pod is replaced: the shapes that its predecessor served are compiled before the first request.
#[test]
fn the_shapes_of_production_are_warm_before_the_first_request() {
    let folder = Folder::new();
    let yaml = format!("jit: {{ manifest_path: \"{}\" }}\n", folder.file("shapes.json").display());
    let start = |engine: &Engine| {
        let settings = apply_policy(engine, &yaml);
        JitQueue::start(engine, "llama3-8b", JitConfig::of(|key| settings.value(key)))
    };
    let (first, _) = jit_engine();
    let queue = start(&first);
    for rows in [1, 64, 4096] {
        Norm::rows(rows).serve(&first).unwrap();
    }
    assert!(queue.wait_until_idle(LONG));
    queue.stop();

    let (next, count) = jit_engine();
    let queue = start(&next);
    let items = queue.manifest().items(&next.registry());
    let mut progress_reports = 0;
    let report = next.warmup(&items, &mut |_| {
        progress_reports += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((report.compiled.len(), count.load(Ordering::SeqCst)), (3, 3));
    assert!(progress_reports >= 3, "progress is reported");
    for rows in [1, 64, 4096] {
        assert_eq!(Norm::rows(rows).serve(&next).unwrap(), "jit.x");
    }
    assert_eq!(count.load(Ordering::SeqCst), 3, "nothing was compiled in a request");
    queue.stop();
}

/// A burst of new shapes fills the compile queue: the oldest request is dropped and counted, and compiled
/// when it is requested again.
#[test]
fn a_full_compile_queue_drops_the_oldest_request() {
    let (release, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let (engine, _) = jit_engine_with_compile_hook(move || {
        // Dropping the sender releases all compilations.
        let _ = gate.lock().unwrap_or_else(PoisonError::into_inner).recv();
    });
    let queue = JitQueue::start(&engine, "llama3-8b", JitConfig { queue: 2, ..JitConfig::default() });
    Norm::hidden(1).serve(&engine).unwrap();
    while queue.waiting() > 0 {
        std::thread::yield_now();
    }
    // The first request is being compiled; two of the next three fit into the queue.
    for hidden in [2, 3, 4] {
        assert_eq!(Norm::hidden(hidden).serve(&engine).unwrap(), "plain.x");
    }
    assert_eq!((queue.waiting(), queue.counters().dropped), (2, 1));
    assert_eq!(queue.last_dropped().map(|reason| reason.code), Some(ReasonCode::CompileQueueFull));
    drop(release);
    assert!(queue.wait_until_idle(LONG));
    let served = |hidden| Norm::hidden(hidden).serve(&engine).unwrap();
    assert_eq!([1, 3, 4].map(served), ["jit.x"; 3]);
    assert_eq!(served(2), "plain.x");
    assert!(queue.wait_until_idle(LONG));
    assert_eq!(served(2), "jit.x");
    queue.stop();
}

/// A cold kernel without a fallback: by default its call is rejected with the reason; `fail_on_no_fallback:
/// false` compiles it in the call.
#[test]
fn a_cold_kernel_without_a_fallback_compiles_only_if_policy_allows() {
    let mut only = host_spec("jit.x");
    only.jit = true;
    let engine = host_engine([only]);
    let error = Norm::default().serve(&engine).unwrap_err();
    assert!(error.has(ReasonCode::JitCold), "{error}");
    apply_policy(&engine, "jit: { fail_on_no_fallback: false }\n");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "jit.x");
    apply_policy(&engine, "jit: { fail_on_no_fallback: true }\n");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "jit.x", "it is warm now");
    assert!(Norm::rows(4000).serve(&engine).is_err(), "for this bucket it is not");
}
