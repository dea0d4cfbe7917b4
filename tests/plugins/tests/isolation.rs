//! Plugins in a worker process: whatever they do, the host goes on, the call has a reason, and the next one succeeds.

mod support;

use std::process::Command;
use std::time::Duration;

use lz_core::{Error, ReasonCode, TensorMut, TensorView};
use lz_engine::Engine;
use lz_engine::policy::layer::Given;
use lz_ops::{NormRms, norm_rms, norm_rms_into};
use lz_worker::{Worker, WorkerOptions};
use support::{compile, folder, worker_program};

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
    let engine = lz_ops::reference_engine();
    engine.register(worker.kernels(&engine).unwrap()).unwrap();
    engine
}

fn call(engine: &Engine) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (0..24).map(|at| at as f32 - 7.5).collect();
    let output = norm_rms(engine, NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap()))?.output;
    Ok(output.view().as_slice::<f32>().unwrap().to_vec())
}

fn without_fallback(engine: &Engine) {
    engine.configure([("fallback_enabled".to_owned(), Given::Bool(false))]).unwrap();
}

fn close(found: &[f32], wanted: &[f32]) {
    assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} should be {wanted:?}");
}

#[test]
fn a_kernel_in_a_worker_gives_the_same_results() {
    let worker = Worker::start(options("")).unwrap();
    let engine = engine_with(&worker);
    let free = worker.free_bytes();
    engine.lock("norm.rms", "c.norm.rms").unwrap();
    let wanted = call(&lz_ops::reference_engine()).unwrap();
    close(&call(&engine).unwrap(), &wanted);
    // From and into memory that both processes see, without a copy.
    let mut x = worker.allocate(&[3, 8], lz_core::DType::F32).unwrap();
    for (at, value) in x.view_mut().as_slice_mut::<f32>().unwrap().iter_mut().enumerate() {
        *value = at as f32 - 7.5;
    }
    let mut out = worker.allocate(&[3, 8], lz_core::DType::F32).unwrap();
    norm_rms_into(&engine, &NormRms::new(x.view()), out.view_mut()).unwrap();
    close(out.view().as_slice::<f32>().unwrap(), &wanted);
    drop((x, out));
    assert_eq!(worker.free_bytes(), free, "everything was given back");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| close(&call(&engine).unwrap(), &wanted)));
        }
    });
    assert_eq!(worker.starts(), 1);
}

#[test]
fn tensors_that_do_not_fit_go_to_another_kernel() {
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

/// Loses its worker in the call: the reason is `code`, another kernel does the work, and a new worker is started.
fn survives(fault: &str, code: ReasonCode, change: impl Fn(&mut WorkerOptions)) {
    let mut options = options(fault);
    change(&mut options);
    let worker = Worker::start(options).unwrap();
    let engine = engine_with(&worker);
    let wanted = call(&lz_ops::reference_engine()).unwrap();
    assert_eq!(call(&engine).unwrap(), wanted, "the reference does its work");
    assert_eq!(engine.fallbacks(), 1);
    let engine = engine_with(&worker);
    without_fallback(&engine);
    let error = call(&engine).unwrap_err();
    assert!(error.has(code), "{fault}: {error}");
    assert!(worker.starts() >= 2, "it was started again");
    // Calls of other sizes are told of it as well.
    let other = [0f32; 4096];
    let args = NormRms::new(TensorView::from_slice(&other, &[512, 8]).unwrap());
    let told = engine.explain(&lz_ops::NORM_RMS, &args.check().unwrap().context()).to_string();
    assert!(told.contains(code.as_str()), "{fault}: {told}");
    // A worker that fails again and again is left alone for a while, and the reason says so.
    let mut reasons = Vec::new();
    for _ in 0..6 {
        if let Err(error) = call(&engine) {
            reasons.extend(error.reasons().iter().map(|reason| reason.code));
        }
    }
    let left_alone = |code: &ReasonCode| {
        let waits = [ReasonCode::WorkerUnavailable, ReasonCode::CircuitOpen];
        waits.contains(code)
    };
    assert!(reasons.iter().any(left_alone), "{fault}: {reasons:?}");
}

#[test]
fn a_crash_is_survived() {
    survives("CRASH", ReasonCode::WorkerCrashed, |_| {});
}

#[test]
fn an_exception_that_nobody_catches_is_survived() {
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
    // Too slow to outrun whoever looks at its memory every few milliseconds: it is stopped a little above its limit.
    survives("OOM", ReasonCode::WorkerOom, |options| options.memory_limit = Some(128 << 20));
}

#[test]
fn a_killed_worker_is_started_again() {
    let worker = Worker::start(options("")).unwrap();
    let engine = engine_with(&worker);
    engine.lock("norm.rms", "c.norm.rms").unwrap();
    let wanted = call(&lz_ops::reference_engine()).unwrap();
    close(&call(&engine).unwrap(), &wanted);
    let id = worker.process_id().unwrap();
    assert!(Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
    while worker.process_id().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    close(&call(&engine).unwrap(), &wanted);
    assert_eq!(worker.starts(), 2);
}

#[test]
fn a_crash_in_the_initialiser_is_a_worker_that_does_not_start() {
    let reason = Worker::start(options("INIT_CRASH")).unwrap_err();
    assert_eq!(reason.code, ReasonCode::WorkerUnavailable);
    assert!(reason.sentence().contains("SIGSEGV"), "{reason}");
    let reason = Worker::start(options("VERSION")).unwrap_err();
    assert!(reason.sentence().contains("version 2.0"), "{reason}");
    let reason = Worker::start(WorkerOptions::new("/no/such/program")).unwrap_err();
    assert_eq!(reason.code, ReasonCode::WorkerUnavailable);
}

#[test]
fn a_worker_that_talks_garbage_is_stopped() {
    let options = WorkerOptions::new("/bin/sh").argument("-c").argument("exit 3");
    let reason = Worker::start(options).unwrap_err();
    assert!(reason.sentence().contains("exit code 3"), "{reason}");
    // Says that it is ready without having said anything: state READY, greeting empty.
    let script = "import os, mmap, struct\n\
        memory = mmap.mmap(int(os.environ['LAYERZERO_WORKER_CONTROL']), 0)\n\
        memory[8:12] = struct.pack('<I', 1)\n\
        import time\n\
        time.sleep(60)\n";
    let reason = Worker::start(WorkerOptions::new("python3").argument("-c").argument(script)).unwrap_err();
    assert_eq!(reason.code, ReasonCode::WorkerGarbage, "{reason}");
}

#[test]
fn the_end_is_told_with_its_signal() {
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
