//! What native kernels promise beyond their results, at the sizes of real models: the same bits for any number of threads,
//! exactly the scratch memory that they declare, and no other allocation.

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
const LARGEST: usize = 24 << 20;

/// The same where much is multiplied.
const LARGEST_MULTIPLIED: usize = 6 << 20;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is handed to the system's allocator; only a counter of the thread is changed besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a kernel; says how often it allocated on this thread.
fn run(
    kernel: &KernelEntry,
    call: &mut OwnedCall,
    scratch: &mut Scratch,
    workspace: u64,
) -> Result<u64, String> {
    call.lend(|args, outputs| {
        let before = ALLOCATIONS.get();
        let outcome = kernel.kernel.run(args, outputs, &mut Run::new(scratch, workspace));
        let allocations = ALLOCATIONS.get() - before;
        outcome.map(|()| allocations).map_err(|error| error.to_string())
    })
}

/// Everything that a call has written, as bytes.
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

/// Whether an operation multiplies so much that plain code would take too long at these sizes; drawn calls hold that to the reference.
fn multiplies(name: &str) -> bool {
    name.starts_with("mlp.") || (name.starts_with("attention.") && name != "attention.state.merge")
}

fn for_each_workload(check: impl Fn(&KernelEntry, &OwnedCall, u64)) {
    let mut checked = 0;
    for subject in SUBJECTS.into_iter().filter(|subject| !subject.info().name.starts_with("tokenize.")) {
        let (info, operation) = (subject.info(), subject.info().schema());
        let prepared = Prepared::new(operation);
        for workload in &operation.workloads {
            let mut call = filled(&prepared, workload).unwrap();
            let size: usize =
                call.args.iter().filter_map(OwnedArg::tensor).map(|tensor| tensor.bytes().len()).sum();
            if size > if multiplies(&info.name) { LARGEST_MULTIPLIED } else { LARGEST } {
                continue;
            }
            let answer = call.lend(|args, outputs| subject.check(args, Some(outputs)));
            let Some(Checked::Right { context, outputs: Some(Ok(())) }) = answer else {
                panic!("{} {}: refused", info.name, workload.name)
            };
            for kernel in lz_test_kernels::runnable() {
                let plain = multiplies(&info.name) && kernel.spec.device.isa.is_empty();
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
    assert!(checked > 50, "only {checked} cases");
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    pool::set_threads(5);
    for_each_workload(|kernel, call, workspace| {
        let mut alone = call.clone();
        pool::with_threads(1, || run(kernel, &mut alone, &mut Scratch::default(), workspace)).unwrap();
        for threads in [2, 5] {
            let mut together = call.clone();
            pool::with_threads(threads, || run(kernel, &mut together, &mut Scratch::default(), workspace))
                .unwrap();
            assert!(written(&alone) == written(&together), "{} with {threads} threads", kernel.spec.id);
        }
    });
}

#[test]
fn scratch_memory_is_what_was_declared_and_nothing_else_is_allocated() {
    for_each_workload(|kernel, call, workspace| {
        let id = &kernel.spec.id;
        let mut scratch = Scratch::default();
        pool::with_threads(1, || {
            run(kernel, &mut call.clone(), &mut scratch, workspace).unwrap();
            let again = run(kernel, &mut call.clone(), &mut scratch, workspace).unwrap();
            assert_eq!(again, 0, "{id} allocates");
            // More than declared is refused, so a kernel that also fails with a byte less asks for exactly that.
            if let Some(less) = workspace.checked_sub(1) {
                assert!(
                    run(kernel, &mut call.clone(), &mut scratch, less).is_err(),
                    "{id} declares more than it uses"
                );
            }
        });
    });
}

/// Besides what is tested above, which is no allocation at all: nothing is declared that could grow with the length.
#[test]
fn whole_sequences_need_no_memory_beyond_their_tensors() {
    for_each_workload(|kernel, _, workspace| {
        if kernel.spec.operation.contains("prefill") {
            assert_eq!(workspace, 0, "{}", kernel.spec.id);
        }
    });
}
