//! Circuit breakers: when they open, when they probe, what scope a failure has, how the engine degrades.

use std::time::Duration;

use lz_core::KernelError;
use lz_core::kernel::Severity;
use lz_engine::Engine;
use lz_engine::health::DegradationLevel;
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::host_spec;
use lz_scenarios::kernels::{kernel_fn, noop_kernel};

use super::{FlakyKernel, engine_with_manual_clock, good};

fn serve(engine: &Engine, times: u32) {
    (0..times).for_each(|_| drop(Norm::default().serve(engine).unwrap()));
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A kernel fails five times in one bucket: its circuit opens, and the sixth call skips it.
#[test]
fn five_failures_open_the_circuit() {
    let flaky_kernel = FlakyKernel::new();
    let (engine, _) =
        engine_with_manual_clock([flaky_kernel.entry(host_spec("unstable.x").priority(95)), good()]);
    serve(&engine, 20);
    assert_eq!(flaky_kernel.calls(), 5);
    assert_eq!(engine.fallbacks(), 5);
    let explanation = Norm::default().explain(&engine);
    let reason = &explanation.candidate("unstable.x").unwrap().reasons[0];
    assert_eq!(reason.code, "CIRCUIT_OPEN");
    assert_eq!(
        reason.sentence,
        "the circuit of kernel unstable.x is open after 5 failures (a launch failure); the next probe is in 30.0 s"
    );
}

/// After 30 seconds the kernel works again: three consecutive probes succeed, and the circuit closes.
#[test]
fn a_repaired_kernel_is_restored_after_three_probes() {
    let flaky_kernel = FlakyKernel::new();
    let (engine, clock) =
        engine_with_manual_clock([flaky_kernel.entry(host_spec("unstable.x").priority(95)), good()]);
    serve(&engine, 10);
    flaky_kernel.repair();
    clock.advance(seconds(29));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x", "too early");
    clock.advance(seconds(1));
    for probe in 1..=3 {
        assert_eq!(Norm::default().serve(&engine).unwrap(), "unstable.x", "probe {probe}");
    }
    let summary = engine.health().summary();
    assert_eq!((summary.counters.probes, summary.counters.closings, summary.blocking), (3, 1, 0));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "unstable.x");
}

/// A probe fails: the waiting time doubles, and the call is served by the fallback.
#[test]
fn a_failed_probe_doubles_the_wait() {
    let flaky_kernel = FlakyKernel::new();
    let (engine, clock) =
        engine_with_manual_clock([flaky_kernel.entry(host_spec("unstable.x").priority(95)), good()]);
    serve(&engine, 10);
    for (wait, calls) in [(30, 6), (60, 7), (120, 8)] {
        clock.advance(seconds(wait - 1));
        serve(&engine, 3);
        assert_eq!(flaky_kernel.calls(), calls - 1, "one second too early");
        clock.advance(seconds(1));
        serve(&engine, 3);
        assert_eq!(flaky_kernel.calls(), calls);
    }
}

/// Failures in one bucket do not exclude a kernel from others: there it stays selected, with a small penalty.
#[test]
fn failures_in_one_bucket_do_not_exclude_others() {
    let flaky_kernel = FlakyKernel::new();
    let (engine, _) =
        engine_with_manual_clock([flaky_kernel.entry(host_spec("unstable.x").priority(95)), good()]);
    serve(&engine, 10);
    flaky_kernel.repair();
    assert_eq!(Norm::default().selected(&engine).unwrap(), "good.x");
    assert_eq!(Norm::rows(100).serve(&engine).unwrap(), "unstable.x");
    assert_eq!(Norm::rows(100).explain(&engine).candidate("unstable.x").unwrap().score.reliability, -2.0);
}

/// A backend's process dies: the circuit of the whole backend opens, other backends are unaffected.
#[test]
fn a_fatal_failure_opens_the_backend_circuit() {
    let dies = || Err(KernelError::failed("the worker is gone").severity(Severity::Backend));
    let (engine, clock) = engine_with_manual_clock([
        kernel_fn(host_spec("dead.a").priority(90), &NORM_RMS, dies),
        noop_kernel(host_spec("dead.b").priority(80), &NORM_RMS),
        good(),
    ]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x", "no other kernel of the backend is tried");
    assert_eq!(Norm::rows(100).codes(&engine, "dead.b"), ["CIRCUIT_OPEN"]);
    clock.advance(seconds(30));
    assert_eq!(Norm::rows(100).selected(&engine).unwrap(), "dead.a", "probed after 30 s");
}

/// A kernel fails on every second call: the successes in between do not keep its circuit closed.
#[test]
fn alternating_failures_open_the_circuit() {
    let turn = std::sync::atomic::AtomicU32::new(0);
    let flaky = kernel_fn(host_spec("flaky.x").priority(95), &NORM_RMS, move || {
        let turn = turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if turn.is_multiple_of(2) { Err(KernelError::failed("now and then")) } else { Ok(()) }
    });
    let (engine, _) = engine_with_manual_clock([flaky, good()]);
    serve(&engine, 12);
    assert_eq!(Norm::default().codes(&engine, "flaky.x"), ["CIRCUIT_OPEN"]);
}

/// A kernel failed twice and then succeeds for a long time: its penalty decays.
#[test]
fn a_penalty_decays_with_successes() {
    let flaky_kernel = FlakyKernel::new();
    let (engine, _) =
        engine_with_manual_clock([flaky_kernel.entry(host_spec("unstable.x").priority(95)), good()]);
    serve(&engine, 2);
    flaky_kernel.repair();
    let reliability = || Norm::default().explain(&engine).candidate("unstable.x").unwrap().score.reliability;
    assert_eq!(reliability(), -8.0);
    serve(&engine, 3);
    assert_eq!(reliability(), 0.0);
    serve(&engine, 20);
    assert!(engine.health().has_no_records());
}

/// An operator has replaced the library and resets the kernel: it is selected immediately, without probes.
#[test]
fn a_reset_closes_the_circuit_immediately() {
    let flaky_kernel = FlakyKernel::new();
    let (engine, _) =
        engine_with_manual_clock([flaky_kernel.entry(host_spec("unstable.x").priority(95)), good()]);
    serve(&engine, 10);
    flaky_kernel.repair();
    engine.health().reset_kernel("unstable.x");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "unstable.x");
}

/// A kernel fails in many buckets: its penalty is bounded, so that it ranks lower but stays eligible.
#[test]
fn a_penalty_is_bounded() {
    let flaky_kernel = FlakyKernel::new();
    let (engine, _) =
        engine_with_manual_clock([flaky_kernel.entry(host_spec("unstable.x").priority(95)), good()]);
    for hidden in 1..=20 {
        (0..5).for_each(|_| drop(Norm::hidden(hidden).serve(&engine).unwrap()));
    }
    let explanation = Norm::hidden(64).explain(&engine);
    assert_eq!(explanation.candidate("unstable.x").unwrap().score.reliability, -30.0);
}

/// Most kernels fail: the engine degrades by levels, down to the references, and reports the level.
#[test]
fn the_engine_degrades_by_levels() {
    let lost = || Err(KernelError::failed("CUDA_ERROR_ECC_UNCORRECTABLE").severity(Severity::Device));
    let (engine, clock) = engine_with_manual_clock([
        kernel_fn(host_spec("bad.x").priority(90), &NORM_RMS, lost),
        noop_kernel(host_spec("fast.x").priority(80), &NORM_RMS),
        noop_kernel(host_spec("reference.x"), &NORM_RMS),
    ]);
    assert_eq!(engine.health().level(), DegradationLevel::Full);
    Norm::default().serve(&engine).unwrap_err();
    assert_eq!(engine.health().level(), DegradationLevel::ReferencesOnly);
    engine.health().device_recovered(&lz_device::detect_cpu().uuid);
    assert_eq!(Norm::rows(100).selected(&engine).unwrap(), "reference.x");
    assert_eq!(Norm::rows(100).codes(&engine, "fast.x"), ["DEGRADED"]);
    // Recovers one level at a time, after 30 seconds without failures each.
    let mut levels = Vec::new();
    for _ in 0..6 {
        clock.advance(seconds(31));
        engine.health().reset_kernel("bad.x");
        engine.health().poll();
        levels.push(engine.health().level());
    }
    assert_eq!(levels.last(), Some(&DegradationLevel::Full), "{levels:?}");
    assert!(levels.contains(&DegradationLevel::CachedOnly), "{levels:?}");
    assert_ne!(Norm::rows(100).selected(&engine).unwrap(), "reference.x");
}

/// Internal faults in background work: the engine disables background work and keeps serving.
#[test]
fn internal_faults_disable_background_work() {
    let (engine, clock) = engine_with_manual_clock([good()]);
    (0..3).for_each(|_| engine.health().record_engine_fault("a snapshot could not be made"));
    assert_eq!(engine.health().level(), DegradationLevel::NoBackground);
    assert!(!engine.health().level().allows_background());
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    clock.advance(seconds(61));
    engine.health().poll();
    clock.advance(seconds(31));
    engine.health().poll();
    assert_eq!(engine.health().level(), DegradationLevel::Full);
}
