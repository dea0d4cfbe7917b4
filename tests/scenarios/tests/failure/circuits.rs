//! Circuits: when a kernel is left alone, when it is tried again, how far the trouble reaches, how the engine steps back.

use std::time::Duration;

use lz_core::KernelError;
use lz_core::kernel::Severity;
use lz_engine::Engine;
use lz_engine::health::DegradationLevel;
use lz_ops::NORM_RMS;
use lz_scenarios::calls::{Ask, Norm};
use lz_scenarios::house::host_spec;
use lz_scenarios::kernels::{doing, quiet};

use super::{Moody, clocked, good};

fn serve(engine: &Engine, times: u32) {
    (0..times).for_each(|_| drop(Norm::default().serve(engine).unwrap()));
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A kernel fails five times in one shape: it is left alone, and the sixth call no longer pays for its failing.
#[test]
fn five_failures_open_the_circuit() {
    let moody = Moody::new();
    let (engine, _) = clocked([moody.entry(host_spec("moody.x").priority(95)), good()]);
    serve(&engine, 20);
    assert_eq!(moody.calls(), 5);
    assert_eq!(engine.fallbacks(), 5);
    let explanation = Norm::default().explain(&engine);
    let reason = &explanation.candidate("moody.x").unwrap().reasons[0];
    assert_eq!(reason.code, "CIRCUIT_OPEN");
    assert_eq!(
        reason.sentence,
        "the circuit of kernel moody.x is open after 5 failures (a launch failure); the next probe is in 30.0 s"
    );
}

/// Half a minute later the kernel works again: three probes succeed one after the other, and it serves as before.
#[test]
fn a_mended_kernel_comes_back_after_three_probes() {
    let moody = Moody::new();
    let (engine, clock) = clocked([moody.entry(host_spec("moody.x").priority(95)), good()]);
    serve(&engine, 10);
    moody.mend();
    clock.advance(seconds(29));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x", "too early");
    clock.advance(seconds(1));
    for probe in 1..=3 {
        assert_eq!(Norm::default().serve(&engine).unwrap(), "moody.x", "probe {probe}");
    }
    let summary = engine.health().summary();
    assert_eq!((summary.counters.probes, summary.counters.closings, summary.blocking), (3, 1, 0));
    assert_eq!(Norm::default().serve(&engine).unwrap(), "moody.x");
}

/// The kernel still fails when it is probed: it is left alone for twice as long, and the caller's call is done by another.
#[test]
fn a_failed_probe_doubles_the_wait() {
    let moody = Moody::new();
    let (engine, clock) = clocked([moody.entry(host_spec("moody.x").priority(95)), good()]);
    serve(&engine, 10);
    for (wait, calls) in [(30, 6), (60, 7), (120, 8)] {
        clock.advance(seconds(wait - 1));
        serve(&engine, 3);
        assert_eq!(moody.calls(), calls - 1, "one second before its time");
        clock.advance(seconds(1));
        serve(&engine, 3);
        assert_eq!(moody.calls(), calls);
    }
}

/// One bad shape does not condemn a kernel: in another bucket it goes on, with a small mark against it.
#[test]
fn one_bad_shape_does_not_condemn_a_kernel() {
    let moody = Moody::new();
    let (engine, _) = clocked([moody.entry(host_spec("moody.x").priority(95)), good()]);
    serve(&engine, 10);
    moody.mend();
    assert_eq!(Norm::default().chosen(&engine).unwrap(), "good.x");
    assert_eq!(Norm::rows(100).serve(&engine).unwrap(), "moody.x");
    assert_eq!(Norm::rows(100).explain(&engine).candidate("moody.x").unwrap().score.reliability, -2.0);
}

/// A backend's process dies: all of its kernels are left alone at once, those of other backends are not.
#[test]
fn a_fatal_failure_shuts_the_whole_backend() {
    let dies = || Err(KernelError::failed("the worker is gone").severity(Severity::Backend));
    let (engine, clock) = clocked([
        doing(host_spec("dead.a").priority(90), &NORM_RMS, dies),
        quiet(host_spec("dead.b").priority(80), &NORM_RMS),
        good(),
    ]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x", "not even its second kernel steps in");
    assert_eq!(Norm::rows(100).codes(&engine, "dead.b"), ["CIRCUIT_OPEN"]);
    clock.advance(seconds(30));
    assert_eq!(Norm::rows(100).chosen(&engine).unwrap(), "dead.a", "half a minute later it is tried");
}

/// A kernel fails every second time: successes in between do not hide it, and it is found out.
#[test]
fn a_kernel_that_fails_every_second_time_is_found_out() {
    let turn = std::sync::atomic::AtomicU32::new(0);
    let flaky = doing(host_spec("flaky.x").priority(95), &NORM_RMS, move || {
        let turn = turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if turn.is_multiple_of(2) { Err(KernelError::failed("now and then")) } else { Ok(()) }
    });
    let (engine, _) = clocked([flaky, good()]);
    serve(&engine, 12);
    assert_eq!(Norm::default().codes(&engine, "flaky.x"), ["CIRCUIT_OPEN"]);
}

/// A kernel failed twice and then works for long: the points that it lost come back.
#[test]
fn what_works_for_long_is_forgiven() {
    let moody = Moody::new();
    let (engine, _) = clocked([moody.entry(host_spec("moody.x").priority(95)), good()]);
    serve(&engine, 2);
    moody.mend();
    let reliability = || Norm::default().explain(&engine).candidate("moody.x").unwrap().score.reliability;
    assert_eq!(reliability(), -8.0);
    serve(&engine, 3);
    assert_eq!(reliability(), 0.0);
    serve(&engine, 20);
    assert!(engine.health().has_no_records());
}

/// An operator has replaced the library and resets the kernel: it serves at once, without waiting for a probe.
#[test]
fn a_reset_brings_a_kernel_back_at_once() {
    let moody = Moody::new();
    let (engine, _) = clocked([moody.entry(host_spec("moody.x").priority(95)), good()]);
    serve(&engine, 10);
    moody.mend();
    engine.health().reset_kernel("moody.x");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "moody.x");
}

/// A kernel fails in ever new shapes: its penalty grows to a bound and no further, so that it is passed over, not banned.
#[test]
fn a_penalty_has_a_bound() {
    let moody = Moody::new();
    let (engine, _) = clocked([moody.entry(host_spec("moody.x").priority(95)), good()]);
    for hidden in 1..=20 {
        (0..5).for_each(|_| drop(Norm::hidden(hidden).serve(&engine).unwrap()));
    }
    let explanation = Norm::hidden(64).explain(&engine);
    assert_eq!(explanation.candidate("moody.x").unwrap().score.reliability, -30.0);
}

/// Most of what there is breaks: the engine steps back by levels, down to references, and says at which level it is.
#[test]
fn the_engine_steps_back_as_a_whole() {
    let lost = || Err(KernelError::failed("CUDA_ERROR_ECC_UNCORRECTABLE").severity(Severity::Device));
    let (engine, clock) = clocked([
        doing(host_spec("bad.x").priority(90), &NORM_RMS, lost),
        quiet(host_spec("fast.x").priority(80), &NORM_RMS),
        quiet(host_spec("reference.x"), &NORM_RMS),
    ]);
    assert_eq!(engine.health().level(), DegradationLevel::Full);
    Norm::default().serve(&engine).unwrap_err();
    assert_eq!(engine.health().level(), DegradationLevel::ReferencesOnly);
    engine.health().device_recovered(&lz_device::detect_cpu().uuid);
    assert_eq!(Norm::rows(100).chosen(&engine).unwrap(), "reference.x");
    assert_eq!(Norm::rows(100).codes(&engine, "fast.x"), ["DEGRADED"]);
    // Up again one level at a time, each after half a minute without trouble.
    let mut levels = Vec::new();
    for _ in 0..6 {
        clock.advance(seconds(31));
        engine.health().reset_kernel("bad.x");
        engine.health().poll();
        levels.push(engine.health().level());
    }
    assert_eq!(levels.last(), Some(&DegradationLevel::Full), "{levels:?}");
    assert!(levels.contains(&DegradationLevel::CachedOnly), "{levels:?}");
    assert_ne!(Norm::rows(100).chosen(&engine).unwrap(), "reference.x");
}

/// The engine itself fails in the background several times: it stops working in the background before it stops serving.
#[test]
fn faults_of_the_engine_itself_stop_its_background_work() {
    let (engine, clock) = clocked([good()]);
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
