//! Guarantees of native kernels beyond their results, at model sizes: bit-identical results for any number of
//! threads, exactly the declared workspace, and no other allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lz_conformance::assign::Prepared;
use lz_conformance::call::{OwnedArg, OwnedCall, OwnedOut};
use lz_conformance::generated::SUBJECTS;
use lz_conformance::suite::Checked;
use lz_conformance::workload::filled;
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

fn for_each_workload(
    accepts: impl Fn(&str) -> bool,
    minimum: usize,
    check: impl Fn(&KernelEntry, &OwnedCall, u64),
) {
    let mut checked = 0;
    let tensors = |name: &str| !name.starts_with("tokenize.");
    for subject in SUBJECTS {
        if !tensors(&subject.info().name) || !accepts(&subject.info().name) {
            continue;
        }
        let (info, operation) = (subject.info(), subject.info().schema());
        let prepared = Prepared::new(operation);
        for workload in &operation.workloads {
            let mut call = filled(&prepared, workload).unwrap();
            let size: usize =
                call.args.iter().filter_map(OwnedArg::tensor).map(|tensor| tensor.bytes().len()).sum();
            if size > if is_compute_bound(&info.name) { MAX_COMPUTE_BOUND_BYTES } else { MAX_BYTES } {
                continue;
            }
            let answer = call.with_args(|args, outputs| subject.check(args, Some(outputs)));
            let Some(Checked::Right { context, outputs: Some(Ok(())) }) = answer else {
                panic!("{} {}: rejected", info.name, workload.name)
            };
            for kernel in lz_test_kernels::runnable() {
                let plain = is_compute_bound(&info.name) && kernel.spec.device.isa.is_empty();
                if kernel.spec.operation != info.name || kernel.spec.backend != "cpu" || plain {
                    continue;
                }
                let engine = Engine::new();
                engine.register([kernel.clone()]).unwrap();
                if let Ok(plan) = engine.which(info, &context) {
                    check(kernel, &call, plan.workspace_bytes);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked >= minimum, "only {checked} cases");
}

#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    pool::set_threads(5);
    for_each_workload(
        |_| true,
        50,
        |kernel, call, workspace| {
            let mut alone = call.clone();
            pool::with_threads(1, || run(kernel, &mut alone, &mut Scratch::default(), workspace)).unwrap();
            for threads in [2, 5] {
                let mut together = call.clone();
                pool::with_threads(threads, || {
                    run(kernel, &mut together, &mut Scratch::default(), workspace)
                })
                .unwrap();
                assert!(written(&alone) == written(&together), "{} with {threads} threads", kernel.spec.id);
            }
        },
    );
}

#[test]
fn kernels_use_exactly_the_declared_workspace_and_do_not_allocate() {
    for_each_workload(
        |_| true,
        50,
        |kernel, call, workspace| {
            let id = &kernel.spec.id;
            let mut scratch = Scratch::default();
            pool::with_threads(1, || {
                run(kernel, &mut call.clone(), &mut scratch, workspace).unwrap();
                let again = run(kernel, &mut call.clone(), &mut scratch, workspace).unwrap();
                assert!(again == 0, "{id} allocates {again} times");
                // More than declared is rejected, so a kernel that also fails with a byte less requests exactly
                // the declared size.
                if let Some(less) = workspace.checked_sub(1) {
                    assert!(
                        run(kernel, &mut call.clone(), &mut scratch, less).is_err(),
                        "{id} declares more than it uses"
                    );
                }
            });
        },
    );
}

/// Prefill of softmax attention declares no workspace, so memory cannot grow with the sequence length (allocations are tested
/// above).
#[test]
fn prefill_needs_no_workspace() {
    let is_prefill = |name: &str| name.contains("prefill") && !name.starts_with("attention.linear.");
    for_each_workload(is_prefill, 5, |kernel, _, workspace| {
        assert_eq!(workspace, 0, "{}", kernel.spec.id);
    });
}
