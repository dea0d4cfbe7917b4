//! Native kernels whose memory runs out: every allocation of a size that comes from the call fails once, the call returns
//! `OUT_OF_MEMORY`, and the next call works.
//!
//! Only allocations of this thread fail, so kernels run on one thread.

use std::sync::Mutex;

use lz_conformance::assign::Prepared;
use lz_conformance::call::{OwnedCall, OwnedOut};
use lz_conformance::fill::Numbers;
use lz_conformance::generated::SUBJECTS;
use lz_conformance::random::{Random, case_seed};
use lz_conformance::suite::{Checked, Subject, focus_of};
use lz_conformance::valid::{Drawing, draw_valid};
use lz_conformance::values::claims;
use lz_core::run::{Run, Scratch};
use lz_core::{KernelEntry, KernelError, ReasonCode};
use lz_cpu::pool;
use lz_test_support::{FailingAllocator, fail_allocation};

/// Calls are small, so their data is too. Bookkeeping of a kernel's call (texts of errors) is smaller.
const DATA_BYTES: usize = 64;

/// Calls drawn for each kernel.
const CALLS: u64 = 96;

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

/// The kernel that runs, for the message if the process is aborted.
static RUNNING: Mutex<String> = Mutex::new(String::new());

extern "C" fn name_the_kernel(_signal: i32) {
    if let Ok(name) = RUNNING.try_lock() {
        // SAFETY: the bytes are readable; write may be called by a signal handler.
        unsafe { libc::write(2, name.as_ptr().cast(), name.len()) };
    }
}

/// Runs a kernel while the allocation with this number fails. Returns the result and whether an allocation failed.
fn run(kernel: &KernelEntry, call: &mut OwnedCall, number: u32) -> (Result<(), KernelError>, bool) {
    let mut scratch = Scratch::default();
    call.with_args(|args, outputs| {
        let mut run = Run::unbounded(&mut scratch);
        fail_allocation(number, DATA_BYTES, || kernel.kernel.run(args, outputs, &mut run))
    })
}

/// Fails the first, second, … allocation of a call. Each run is on a new thread, which has no memory from earlier calls. Returns how
/// many failed.
fn fail_each(kernel: &KernelEntry, call: &OwnedCall) -> u32 {
    for number in 0.. {
        let mut attempt = call.clone();
        let (result, failed) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| pool::with_threads(1, || run(kernel, &mut attempt, number)));
            thread.join().unwrap_or_else(|_| panic!("{} panics without memory", kernel.spec.id))
        });
        match result {
            Ok(()) => {
                assert!(!failed, "{}: an allocation failed without an error", kernel.spec.id);
                return number;
            }
            Err(error) => {
                assert!(failed, "{}: nothing failed, but: {error}", kernel.spec.id);
                assert_eq!(error.reason.code, ReasonCode::OutOfMemory, "{}: {error}", kernel.spec.id);
                assert!(error.to_string().contains("bytes"), "{}: {error}", kernel.spec.id);
            }
        }
    }
    unreachable!("there are fewer allocations than numbers")
}

/// A drawn call, if the kernel claims it and runs it.
fn draw(subject: &dyn Subject, prepared: &Prepared, kernel: &KernelEntry, case: u64) -> Option<OwnedCall> {
    let operation = subject.info().schema();
    let mut random = Random::new(case_seed(&operation.name, "failing_allocations", case));
    let focus = focus_of(prepared, case);
    // Values that overflow make kernels repeat a row in f64.
    let numbers = if case.is_multiple_of(2) { Numbers::Normal } else { Numbers::Awkward };
    let drawing = Drawing { size: 100, focus: &focus, numbers, devices: false };
    let mut call = draw_valid(prepared, &mut random, &drawing).ok()?.call;
    let checked = call.with_args(|args, outputs| subject.check(args, Some(outputs)));
    let Some(Checked::Right { context, outputs: Some(Ok(())) }) = checked else { return None };
    call.outputs.iter().all(|output| !matches!(output, OwnedOut::Text(_))).then_some(())?;
    claims(kernel, &context).then_some(())?;
    run(kernel, &mut call.clone(), u32::MAX).0.is_ok().then_some(call)
}

#[test]
fn kernels_report_exhausted_memory() {
    // SAFETY: the handler only writes to a descriptor; then the process is aborted as without it.
    unsafe { libc::signal(libc::SIGABRT, name_the_kernel as *const () as libc::sighandler_t) };
    let (mut kernels, mut failures) = (0, 0);
    for subject in SUBJECTS {
        let operation = subject.info().schema();
        let prepared = Prepared::new(operation).tame();
        let own = lz_test_kernels::runnable()
            .iter()
            .filter(|kernel| kernel.spec.operation == operation.name && kernel.spec.backend == "cpu");
        for kernel in own {
            *RUNNING.lock().unwrap() = format!("{} aborted the process\n", kernel.spec.id);
            kernels += 1;
            for case in 0..CALLS {
                if let Some(call) = draw(subject, &prepared, kernel, case) {
                    failures += fail_each(kernel, &call);
                }
            }
        }
    }
    assert!(kernels >= 100 && failures >= 500, "{failures} failed allocations of {kernels} kernels");
}
