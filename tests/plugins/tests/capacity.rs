//! More calls than slots, and tensors larger than the shared memory: they wait, or are refused without blame for the kernel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::{Error, KernelSpec, ReasonCode, TensorView};
use lz_engine::Engine;
use lz_engine::policy::layer::Given;
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
    engine.configure([("fallback_enabled".to_owned(), Given::Bool(false))]).unwrap();
    engine
}

fn call(engine: &Engine, rows: i64) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (0..rows * 8).map(|at| at as f32 - 7.5).collect();
    let output = norm_rms(engine, NormRms::new(TensorView::from_slice(&x, &[rows, 8]).unwrap()))?.output;
    Ok(output.view().as_slice::<f32>().unwrap().to_vec())
}

/// Calls from many threads at once; how many were refused for want of a slot.
fn at_once(engine: &Engine, threads: usize) -> usize {
    let refused = AtomicUsize::new(0);
    let wanted = call(&lz_ops::reference_engine(), 3).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| match call(engine, 3) {
                Ok(output) => assert_eq!(output, wanted),
                Err(error) => {
                    assert!(error.has(ReasonCode::CapacityExceeded), "{error}");
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    refused.into_inner()
}

#[test]
fn more_calls_than_slots_wait_for_their_turn() {
    let worker = worker(Duration::from_secs(60));
    let engine = engine(&worker, "far.slow");
    assert_eq!(at_once(&engine, 48), 0);
    assert_eq!(worker.starts(), 1);
}

#[test]
fn a_call_that_finds_no_slot_is_refused_without_blame() {
    // 160 calls of 20 ms each take more than three seconds: those that find no slot within the deadline are refused, and
    // those that have one are not taken for hung because others are before them.
    let worker = worker(Duration::from_secs(1));
    let engine = engine(&worker, "far.slow");
    assert!(at_once(&engine, 160) > 5);
    assert_eq!(worker.starts(), 1, "the worker was busy, not hung");
    call(&engine, 3).unwrap();
}

#[test]
fn the_memory_grows_and_larger_calls_are_refused_without_blame() {
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
fn calls_that_waited_for_a_worker_that_was_lost_are_not_blamed() {
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
