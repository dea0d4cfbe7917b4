//! A forked child starts its own worker and does not affect the parent's. Only one test, because it forks the test process.

use lz_core::device::Platform;
use lz_core::{KernelSpec, TensorView};
use lz_engine::Engine;
use lz_ops::{NORM_RMS, NormRms, norm_rms};
use lz_worker::{Worker, WorkerOptions};

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(id: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

/// Whether a call returns the correct results for its inputs.
fn is_correct(engine: &Engine, seed: i32) -> bool {
    let x: Vec<f32> = (0..24).map(|at| (at * seed) as f32 - 7.5).collect();
    let call = |engine: &Engine| {
        let args = NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap());
        norm_rms(engine, args).map(|result| result.output.view().as_slice::<f32>().unwrap().to_vec())
    };
    call(engine).ok() == call(&reference_engine()).ok()
}

#[test]
fn forked_children_and_the_parent_use_their_own_workers() {
    let mut options = WorkerOptions::new(env!("CARGO_BIN_EXE_lz-test-worker"));
    options.arena_bytes = 1 << 20;
    let worker = Worker::start(options).unwrap();
    let engine = reference_engine();
    let spec = KernelSpec::new("far.norm.rms", "norm.rms", "far", "1", Platform::Cpu);
    engine.register([worker.kernel(spec, &NORM_RMS)]).unwrap();
    engine.lock("norm.rms", "far.norm.rms").unwrap();
    assert!(is_correct(&engine, 1));
    let own = worker.process_id().unwrap();
    let mut tensor = worker.allocate(&[8], lz_core::DType::F32);
    let mut children = Vec::new();
    for child in 0..4 {
        // SAFETY: the child uses only code that supports forking, and exits with `_exit`.
        match unsafe { fork() } {
            0 => {
                drop(tensor.take());
                let correct = (0..50).all(|call| is_correct(&engine, child * 50 + call));
                let own_worker = worker.process_id().is_some_and(|id| id != own) && worker.starts() == 1;
                drop((engine, worker));
                // SAFETY: terminates the child.
                unsafe { _exit(if correct && own_worker { 0 } else { 1 + i32::from(correct) }) }
            }
            id => children.push(id),
        }
    }
    for call in 0..100 {
        assert!(is_correct(&engine, 1000 + call), "the parent's call {call}");
    }
    for child in children {
        let mut status = -1;
        // SAFETY: our child, and a valid pointer.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "256: wrong results, 512: the parent's worker, otherwise a signal");
    }
    assert!(is_correct(&engine, 7));
    assert_eq!((worker.process_id(), worker.starts()), (Some(own), 1), "the parent's worker still runs");
    assert!(tensor.is_some());
}
