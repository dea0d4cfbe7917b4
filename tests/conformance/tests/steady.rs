//! Guarantees of native kernels beyond their results, at model sizes: bit-identical results for any number of
//! threads, exactly the declared workspace, and no other allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lz_conformance::assign::Prepared;
use lz_conformance::call::{OwnedArg, OwnedCall, OwnedOut};
use lz_conformance::generated::SUBJECTS;
use lz_conformance::suite::Checked;
use lz_conformance::workload::{filled, input_bytes};
use lz_core::KernelEntry;
use lz_core::run::{Run, Scratch};
use lz_cpu::pool;
use lz_engine::Engine;

/// Larger workloads would only take longer.
const MAX_BYTES: usize = 24 << 20;

/// The same for compute-bound operations.
const MAX_COMPUTE_BOUND_BYTES: usize = 6 << 20;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is forwarded to the system allocator; only a thread-local counter is changed.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a kernel; returns the number of allocations on this thread.
fn run(
    kernel: &KernelEntry,
    call: &mut OwnedCall,
    scratch: &mut Scratch,
    workspace: u64,
) -> Result<u64, String> {
    call.with_args(|args, outputs| {
        let before = ALLOCATIONS.get();
        let outcome = kernel.kernel.run(args, outputs, &mut Run::new(scratch, workspace));
        let allocations = ALLOCATIONS.get() - before;
        outcome.map(|()| allocations).map_err(|error| error.to_string())
    })
}

/// All bytes that a call may have written.
fn written(call: &OwnedCall) -> Vec<&[u8]> {
    let args = call.args.iter().filter_map(|arg| match arg {
        OwnedArg::Written(tensor) => Some(tensor.bytes()),
        _ => None,
    });
    let outputs = call.outputs.iter().filter_map(|output| match output {
        OwnedOut::Tensor(tensor) => Some(tensor.bytes()),
        _ => None,
    });
    args.chain(outputs).collect()
}

/// Whether an operation is so compute-bound that scalar code would take too long at these sizes; drawn calls
/// check it against the reference.
fn is_compute_bound(name: &str) -> bool {
    name.starts_with("mlp.") || (name.starts_with("attention.") && name != "attention.state.merge")
}

/// Calls `check` for each kernel and workload, with the original call, a copy to run, and the declared workspace.
fn for_each_workload(minimum: usize, mut check: impl FnMut(&KernelEntry, &OwnedCall, &mut OwnedCall, u64)) {
    let mut checked = 0;
    for subject in SUBJECTS {
        let (info, operation) = (subject.info(), subject.info().schema());
        if info.name.starts_with("tokenize.") {
            continue;
        }
        let prepared = Prepared::new(operation);
        let most = if is_compute_bound(&info.name) { MAX_COMPUTE_BOUND_BYTES } else { MAX_BYTES };
        for workload in &operation.workloads {
            if input_bytes(&prepared, workload).unwrap() > most {
                continue;
            }
            let mut call = filled(&prepared, workload).unwrap();
            let answer = call.with_args(|args, outputs| subject.check(args, Some(outputs)));
            let Some(Checked::Right { context, outputs: Some(Ok(())) }) = answer else {
                panic!("{} {}: rejected", info.name, workload.name)
            };
            let mut copy = call.clone();
            for kernel in lz_test_kernels::runnable() {
                let plain = is_compute_bound(&info.name) && kernel.spec.device.isa.is_empty();
                if kernel.spec.operation != info.name || kernel.spec.backend != "cpu" || plain {
                    continue;
                }
                let engine = Engine::new();
                engine.register([kernel.clone()]).unwrap();
                if let Ok(plan) = engine.which(info, &context) {
                    check(kernel, &call, &mut copy, plan.workspace_bytes);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked >= minimum, "only {checked} cases");
}

/// Results are bit-identical for any number of threads. With one thread, kernels use exactly the declared workspace and do not
/// allocate. Prefill of softmax attention declares no workspace, so memory cannot grow with the sequence length.
#[test]
fn kernels_are_independent_of_threads_and_use_the_declared_memory() {
    pool::set_threads(5);
    let mut prefills = 0;
    for_each_workload(50, |kernel, call, copy, workspace| {
        let id = &kernel.spec.id;
        if is_prefill(&kernel.spec.operation) {
            assert_eq!(workspace, 0, "{id}");
            prefills += 1;
        }
        let mut scratch = Scratch::default();
        let mut run_again = |copy: &mut OwnedCall, threads: usize, workspace: u64| {
            copy.restore(call);
            pool::with_threads(threads, || run(kernel, copy, &mut scratch, workspace))
        };
        run_again(copy, 1, workspace).unwrap();
        let alone: Vec<Vec<u8>> = written(copy).into_iter().map(<[u8]>::to_vec).collect();
        assert_eq!(run_again(copy, 1, workspace), Ok(0), "{id} allocates");
        for threads in [2, 5] {
            run_again(copy, threads, workspace).unwrap();
            assert!(alone == written(copy), "{id} with {threads} threads");
        }
        // More than declared is rejected, so a kernel that also fails with a byte less requests exactly the declared size.
        if let Some(less) = workspace.checked_sub(1) {
            assert!(run_again(copy, 1, less).is_err(), "{id} declares more than it uses");
        }
    });
    assert!(prefills >= 5, "only {prefills} cases of prefill");
}

fn is_prefill(operation: &str) -> bool {
    operation.contains("prefill") && !operation.starts_with("attention.linear.")
}
