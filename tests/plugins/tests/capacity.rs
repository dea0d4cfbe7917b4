//! Back-pressure: calls beyond the number of slots or the size of the arena wait, or fail without counting against the kernel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::{Error, KernelSpec, ReasonCode, TensorView};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;
use lz_ops::{NORM_RMS, NormRms, norm_rms};
use lz_worker::{Worker, WorkerOptions};

fn worker(deadline: Duration) -> Worker {
    let mut options = WorkerOptions::new(env!("CARGO_BIN_EXE_lz-test-worker"));
    options.arena_bytes = 64 << 10;
    options.arena_limit = 1 << 20;
    options.deadline = deadline;
    Worker::start(options).unwrap()
}

fn engine(worker: &Worker, id: &str) -> Engine {
    let engine = lz_ops::reference_engine();
    let spec = KernelSpec::new(id, "norm.rms", "far", "1", Platform::Cpu);
    engine.register([worker.kernel(spec, &NORM_RMS)]).unwrap();
    engine.lock("norm.rms", id).unwrap();
    engine.configure([("fallback_enabled".to_owned(), SettingInput::Bool(false))]).unwrap();
    engine
}

fn call(engine: &Engine, rows: i64) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (0..rows * 8).map(|at| at as f32 - 7.5).collect();
    let output = norm_rms(engine, NormRms::new(TensorView::from_slice(&x, &[rows, 8]).unwrap()))?.output;
    Ok(output.view().as_slice::<f32>().unwrap().to_vec())
}

/// Calls from many threads concurrently. Returns how many failed because no slot was free.
fn concurrent_calls(engine: &Engine, threads: usize) -> usize {
    let rejected = AtomicUsize::new(0);
    let expected = call(&lz_ops::reference_engine(), 3).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| match call(engine, 3) {
                Ok(output) => assert_eq!(output, expected),
                Err(error) => {
                    assert!(error.has(ReasonCode::CapacityExceeded), "{error}");
                    rejected.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    rejected.into_inner()
}

#[test]
fn calls_beyond_the_number_of_slots_wait() {
    let worker = worker(Duration::from_secs(60));
    let engine = engine(&worker, "far.slow");
    assert_eq!(concurrent_calls(&engine, 48), 0);
    assert_eq!(worker.starts(), 1);
}

#[test]
fn a_call_without_a_slot_fails_without_counting_against_the_worker() {
    // 160 calls of 20 ms take more than three seconds. Calls without a slot within the deadline fail; calls with a slot are not
    // considered hung because of the calls ahead of them.
    let worker = worker(Duration::from_secs(1));
    let engine = engine(&worker, "far.slow");
    assert!(concurrent_calls(&engine, 160) > 5);
    assert_eq!(worker.starts(), 1, "the worker was busy, not hung");
    call(&engine, 3).unwrap();
}

#[test]
fn the_arena_grows_and_larger_calls_fail_without_counting_against_the_worker() {
    let worker = worker(Duration::from_secs(60));
    let engine = engine(&worker, "far.norm.rms");
    let free = worker.free_bytes();
    // 256 KiB in and out.
    assert_eq!(call(&engine, 8192).unwrap(), call(&lz_ops::reference_engine(), 8192).unwrap());
    for _ in 0..8 {
        let error = call(&engine, 1 << 15).unwrap_err();
        assert!(error.has(ReasonCode::OutOfMemory), "{error}");
        assert!(error.to_string().contains("worker.arena_limit_mb"), "{error}");
    }
    call(&engine, 3).unwrap();
    assert_eq!((worker.starts(), worker.free_bytes()), (1, free));
}

#[test]
fn losing_the_worker_counts_only_against_the_running_call() {
    let worker = worker(Duration::from_secs(60));
    let engine = engine(&worker, "far.slow");
    call(&engine, 3).unwrap();
    let id = worker.process_id().unwrap().to_string();
    let crashed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| match call(&engine, 3) {
                Ok(_) => {}
                Err(error) if error.has(ReasonCode::WorkerCrashed) => {
                    crashed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!(error.has(ReasonCode::WorkerUnavailable), "{error}"),
            });
        }
        assert!(std::process::Command::new("kill").args(["-9", &id]).status().unwrap().success());
    });
    assert!(crashed.into_inner() <= 1, "only the call that was running");
}
