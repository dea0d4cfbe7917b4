//! Faulty plugins in a worker process: the host survives, the call fails with a reason, and the next call succeeds.

mod support;

use std::process::Command;
use std::time::Duration;

use lz_core::{Error, ReasonCode, TensorMut, TensorView};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;
use lz_ops::{NormRms, norm_rms, norm_rms_into};
use lz_worker::{Worker, WorkerOptions};
use support::{compile, folder, worker_program};

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

fn options(fault: &str) -> WorkerOptions {
    let mut options = WorkerOptions::new(worker_program())
        .argument(compile("plugin.c", fault))
        .argument("--allow")
        .argument(folder());
    options.arena_bytes = 1 << 20;
    options.arena_limit = 4 << 20;
    options
}

fn engine_with(worker: &Worker) -> Engine {
    let engine = reference_engine();
    engine.register(worker.kernels(&engine).unwrap()).unwrap();
    engine
}

fn call(engine: &Engine) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (0..24).map(|at| at as f32 - 7.5).collect();
    let output = norm_rms(engine, NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap()))?.output;
    Ok(output.view().as_slice::<f32>().unwrap().to_vec())
}

fn without_fallback(engine: &Engine) {
    engine.configure([("fallback_enabled".to_owned(), SettingInput::Bool(false))]).unwrap();
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert!(
        found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6),
        "{found:?} should be {expected:?}"
    );
}

#[test]
fn a_kernel_in_a_worker_gives_equal_results() {
    let worker = Worker::start(options("")).unwrap();
    let engine = engine_with(&worker);
    let free = worker.free_bytes();
    engine.lock("norm.rms", "c.norm.rms").unwrap();
    let expected = call(&reference_engine()).unwrap();
    assert_close(&call(&engine).unwrap(), &expected);
    // Input and output in shared memory, without a copy.
    let mut x = worker.allocate(&[3, 8], lz_core::DType::F32).unwrap();
    for (at, value) in x.view_mut().as_slice_mut::<f32>().unwrap().iter_mut().enumerate() {
        *value = at as f32 - 7.5;
    }
    let mut out = worker.allocate(&[3, 8], lz_core::DType::F32).unwrap();
    norm_rms_into(&engine, &NormRms::new(x.view()), out.view_mut()).unwrap();
    assert_close(out.view().as_slice::<f32>().unwrap(), &expected);
    drop((x, out));
    assert_eq!(worker.free_bytes(), free, "all blocks were released");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| assert_close(&call(&engine).unwrap(), &expected)));
        }
    });
    assert_eq!(worker.starts(), 1);
}

#[test]
fn a_call_larger_than_the_arena_falls_back_to_another_kernel() {
    let worker = Worker::start(options("")).unwrap();
    let engine = engine_with(&worker);
    let x = vec![1f32; 1 << 20];
    let mut out = vec![0f32; 1 << 20];
    let shape = [1 << 10, 1 << 10];
    let output = TensorMut::from_slice(&mut out, &shape).unwrap();
    norm_rms_into(&engine, &NormRms::new(TensorView::from_slice(&x, &shape).unwrap()), output).unwrap();
    assert!((out[7] - 1.0).abs() < 1e-5);
    assert_eq!(engine.fallbacks(), 1);
}

/// The worker is lost during the call: the reason is `code`, the call falls back to another kernel, and the worker is restarted.
fn survives(fault: &str, code: ReasonCode, change: impl Fn(&mut WorkerOptions)) {
    let mut options = options(fault);
    change(&mut options);
    let worker = Worker::start(options).unwrap();
    let engine = engine_with(&worker);
    let expected = call(&reference_engine()).unwrap();
    assert_eq!(call(&engine).unwrap(), expected, "falls back to the reference kernel");
    assert_eq!(engine.fallbacks(), 1);
    let engine = engine_with(&worker);
    without_fallback(&engine);
    let error = call(&engine).unwrap_err();
    assert!(error.has(code), "{fault}: {error}");
    assert!(worker.starts() >= 2, "the worker was restarted");
    // Explanations for other shapes report it too.
    let other = [0f32; 4096];
    let args = NormRms::new(TensorView::from_slice(&other, &[512, 8]).unwrap());
    let explanation = engine.explain(&lz_ops::NORM_RMS, &args.check().unwrap().context()).to_string();
    assert!(explanation.contains(code.as_str()), "{fault}: {explanation}");
    // Repeated failures lead to a restart backoff or an open circuit breaker, and the reason reports it.
    let mut reasons = Vec::new();
    for _ in 0..6 {
        if let Err(error) = call(&engine) {
            reasons.extend(error.reasons().iter().map(|reason| reason.code));
        }
    }
    let backs_off = |code: &ReasonCode| {
        let codes = [ReasonCode::WorkerUnavailable, ReasonCode::CircuitOpen];
        codes.contains(code)
    };
    assert!(reasons.iter().any(backs_off), "{fault}: {reasons:?}");
}

#[test]
fn a_crash_is_survived() {
    survives("CRASH", ReasonCode::WorkerCrashed, |_| {});
}

#[test]
fn an_uncaught_exception_is_survived() {
    let mut options = WorkerOptions::new(worker_program())
        .argument(compile("plugin.cpp", "RAW_THROW"))
        .argument("--allow")
        .argument(folder());
    options.arena_bytes = 1 << 20;
    let worker = Worker::start(options).unwrap();
    let engine = engine_with(&worker);
    without_fallback(&engine);
    let error = call(&engine).unwrap_err();
    assert!(error.has(ReasonCode::WorkerCrashed), "{error}");
    assert!(error.to_string().contains("SIGABRT"), "{error}");
}

#[test]
fn a_hang_is_survived() {
    survives("HANG", ReasonCode::WorkerHung, |options| options.deadline = Duration::from_millis(300));
}

#[test]
fn running_out_of_memory_is_survived() {
    // The plugin allocates slowly enough for the memory polling to stop it slightly above its limit.
    survives("OOM", ReasonCode::WorkerOom, |options| options.memory_limit = Some(128 << 20));
}

#[test]
fn a_killed_worker_is_restarted() {
    let worker = Worker::start(options("")).unwrap();
    let engine = engine_with(&worker);
    engine.lock("norm.rms", "c.norm.rms").unwrap();
    let expected = call(&reference_engine()).unwrap();
    assert_close(&call(&engine).unwrap(), &expected);
    let id = worker.process_id().unwrap();
    assert!(Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
    while worker.process_id().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_close(&call(&engine).unwrap(), &expected);
    assert_eq!(worker.starts(), 2);
}

#[test]
fn a_crash_during_initialization_is_reported_as_unavailable() {
    let reason = Worker::start(options("INIT_CRASH")).unwrap_err();
    assert_eq!(reason.code, ReasonCode::WorkerUnavailable);
    assert!(reason.sentence().contains("SIGSEGV"), "{reason}");
    let reason = Worker::start(options("VERSION")).unwrap_err();
    assert!(reason.sentence().contains("version 2.0"), "{reason}");
    let reason = Worker::start(WorkerOptions::new("/no/such/program")).unwrap_err();
    assert_eq!(reason.code, ReasonCode::WorkerUnavailable);
}

#[test]
fn a_worker_with_an_invalid_handshake_is_stopped() {
    let options = WorkerOptions::new("/bin/sh").argument("-c").argument("exit 3");
    let reason = Worker::start(options).unwrap_err();
    assert!(reason.sentence().contains("exit code 3"), "{reason}");
    // Sets the state READY with an empty handshake.
    let script = "import os, mmap, struct\n\
        memory = mmap.mmap(int(os.environ['LAYERZERO_WORKER_CONTROL']), 0)\n\
        memory[12:16] = struct.pack('<I', 1)\n\
        import time\n\
        time.sleep(60)\n";
    let reason = Worker::start(WorkerOptions::new("python3").argument("-c").argument(script)).unwrap_err();
    assert_eq!(reason.code, ReasonCode::WorkerGarbage, "{reason}");
}

#[test]
fn termination_is_reported_with_exit_code_or_signal() {
    for (script, text) in [
        ("kill -BUS $$", "signal 7 (SIGBUS)"),
        ("kill -KILL $$", "OOM killer"),
        ("kill -TERM $$", "signal 15 (SIGTERM)"),
        ("exit 42", "exit code 42"),
    ] {
        let options = WorkerOptions::new("/bin/sh").argument("-c").argument(script);
        let reason = Worker::start(options).unwrap_err();
        assert!(reason.sentence().contains(text), "{script}: {reason}");
    }
}

#[test]
fn a_worker_outlives_the_thread_that_started_it() {
    let worker = std::thread::spawn(|| Worker::start(options("")).unwrap()).join().unwrap();
    let engine = engine_with(&worker);
    engine.lock("norm.rms", "c.norm.rms").unwrap();
    for _ in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| call(&engine).unwrap());
        });
    }
    assert_eq!(worker.starts(), 1);
}
