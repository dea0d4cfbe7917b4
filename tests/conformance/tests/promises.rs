//! Every promise that a kernel declares is kept, and a wrong declaration of each kind is detected.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lz_conformance::generated::{
    SUBJECTS, attention_gqa_decode, attention_gqa_decode_paged, attention_gqa_prefill_ragged, norm_rms,
};
use lz_conformance::promises::{Effects, Promise, check, has_batch};
use lz_conformance::suite::{Subject, cases};
use lz_conformance::values::{claims, reference};
use lz_core::tensor::{Indices, TensorMut};
use lz_core::{Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OutArg, Run};

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

/// Allocations, and voluntary context switches: the system's count of how often this thread had to wait.
fn effects() -> Effects {
    // SAFETY: an all-zero `rusage` is valid, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    Effects { allocations: ALLOCATIONS.get(), waits: usage.ru_nvcsw.unsigned_abs() }
}

/// Calls drawn for each kernel and promise.
fn count() -> u64 {
    cases("LZ_CASES_PROMISES", 8)
}

/// More calls are drawn, up to this many times as many, until one of them can show whether a promise is kept.
const MAX_DRAWN: u64 = 64;

/// Checks a promise of all kernels that declare it; returns the ids of those that showed that they keep it, and of the others.
fn kept(promise: Promise) -> (Vec<&'static str>, Vec<&'static str>) {
    lz_pool::set_threads(5);
    let (mut kernels, mut not_shown, mut broken) = (Vec::new(), Vec::new(), Vec::new());
    for subject in SUBJECTS {
        for entry in lz_test_kernels::runnable() {
            let is_tensors = !entry.spec.operation.starts_with("tokenize.");
            if entry.spec.operation != subject.info().name || !promise.is_declared(&entry.spec) || !is_tensors
            {
                continue;
            }
            let mut counts = std::iter::successors(Some(count()), |count| Some(count * 4));
            let outcome = counts.find_map(|drawn| {
                let outcome = check(promise, subject, entry, &claims, &effects, drawn);
                let is_last = drawn >= count() * MAX_DRAWN || promise != Promise::BatchInvariant;
                (outcome != Ok(0) || is_last).then_some(outcome)
            });
            match outcome {
                Some(Ok(0)) | None => not_shown.push(entry.spec.id.as_str()),
                Some(Ok(_)) => kernels.push(entry.spec.id.as_str()),
                Some(Err(problem)) => broken.push(problem),
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
    (kernels, not_shown)
}

#[test]
fn deterministic_kernels_return_the_same_bits_in_every_run_and_with_any_number_of_threads() {
    let (kernels, _) = kept(Promise::Deterministic);
    assert!(kernels.len() >= 100, "only {} kernels", kernels.len());
}

#[test]
fn tensor_parallel_invariant_kernels_return_the_same_bits_for_every_number_of_ranks() {
    let (kernels, _) = kept(Promise::TensorParallelInvariant);
    assert!(kernels.len() >= 20, "only {} kernels", kernels.len());
}

#[test]
fn batch_invariant_kernels_return_the_same_bits_in_every_batch() {
    let (kernels, not_shown) = kept(Promise::BatchInvariant);
    assert!(kernels.len() >= 150, "only {} kernels", kernels.len());
    let native: Vec<_> = not_shown.iter().filter(|id| id.starts_with("cpu.")).collect();
    assert!(native.is_empty(), "no drawn call shows it for {native:?}");
}

/// Native attention is batch-invariant over sequences and requests; the exceptions have a reason in their source.
#[test]
fn native_attention_declares_that_it_is_batch_invariant() {
    let is_silent = |entry: &&KernelEntry| {
        let subject = SUBJECTS.iter().find(|subject| subject.info().name == entry.spec.operation);
        entry.spec.id.starts_with("cpu.attention.")
            && subject.is_some_and(|subject| has_batch(subject.info().schema()))
            && !entry.spec.batch_invariant
    };
    let silent: Vec<&str> = lz_test_kernels::runnable()
        .iter()
        .filter(is_silent)
        .map(|entry| entry.spec.id.as_str())
        .filter(|id| *id != "cpu.attention.mla.decode.amx")
        .collect();
    assert!(silent.is_empty(), "{silent:?}");
}

/// A kernel with a wrong declaration: the reference, and then something that breaks the promise.
struct Wrong {
    correct: KernelEntry,
    runs: AtomicU64,
    fault: fn(&mut [OutArg<'_>], u64),
}

impl Kernel for Wrong {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        self.correct.kernel.run(args, outputs, run)?;
        (self.fault)(outputs, self.runs.fetch_add(1, Ordering::Relaxed));
        Ok(())
    }
}

fn wrong(
    subject: &dyn Subject,
    declare: fn(&mut KernelSpec),
    fault: fn(&mut [OutArg<'_>], u64),
) -> KernelEntry {
    let correct = reference(subject.info().schema()).expect("every operation has a reference").clone();
    let mut spec = KernelSpec { id: "wrong".to_owned(), ..(*correct.spec).clone() };
    (spec.deterministic, spec.tp_invariant, spec.batch_invariant) = (false, false, false);
    declare(&mut spec);
    KernelEntry::new(spec, Wrong { correct, runs: AtomicU64::new(0), fault }).of(subject.info())
}

/// Changes the last bit of the first element of the first output.
fn change_last_bit(outputs: &mut [OutArg<'_>]) {
    let Some(OutArg::Tensor(tensor)) = outputs.first_mut() else { return };
    if tensor.as_view().elements() > 0 {
        let bytes = tensor.as_mut_ptr();
        // SAFETY: the first byte of the first element, which has the lowest bits of its mantissa.
        unsafe { bytes.write(bytes.read() ^ 1) };
    }
}

fn round(tensor: &mut TensorMut<'_>) {
    if tensor.dtype() != DType::F32 {
        return;
    }
    for index in Indices::new(&tensor.layout().shape.clone()) {
        let rounded = f32::from_bits((tensor.as_view().at(&index) as f32).to_bits() & !0x1fff);
        tensor.set(&index, f64::from(rounded));
    }
}

fn is_caught(promise: Promise, subject: &dyn Subject, entry: &KernelEntry) {
    lz_pool::set_threads(5);
    assert!(promise.is_declared(&entry.spec), "the declaration is the subject of the test");
    let outcome = check(promise, subject, entry, &|_, _| true, &effects, 64);
    assert!(outcome.is_err(), "{promise:?} is declared and not kept, but {outcome:?}");
}

#[test]
fn a_kernel_that_is_not_deterministic_is_caught() {
    let fault: fn(&mut [OutArg<'_>], u64) = |outputs, runs| {
        if runs % 3 == 2 {
            change_last_bit(outputs);
        }
    };
    is_caught(
        Promise::Deterministic,
        &norm_rms::Operation,
        &wrong(&norm_rms::Operation, |spec| spec.deterministic = true, fault),
    );
}

#[test]
fn a_kernel_whose_bits_depend_on_the_number_of_threads_is_caught() {
    let fault: fn(&mut [OutArg<'_>], u64) = |outputs, _| {
        if lz_pool::threads() > 2 {
            change_last_bit(outputs);
        }
    };
    is_caught(
        Promise::Deterministic,
        &norm_rms::Operation,
        &wrong(&norm_rms::Operation, |spec| spec.deterministic = true, fault),
    );
}

#[test]
fn a_kernel_whose_bits_depend_on_the_number_of_heads_is_caught() {
    let fault: fn(&mut [OutArg<'_>], u64) = |outputs, _| {
        let Some(OutArg::Tensor(tensor)) = outputs.first() else { return };
        // Half of the elements has one zero bit less at the end.
        if tensor.as_view().elements().trailing_zeros() % 2 == 1 {
            change_last_bit(outputs);
        }
    };
    let subject = &attention_gqa_decode::Operation;
    is_caught(
        Promise::TensorParallelInvariant,
        subject,
        &wrong(subject, |spec| spec.tp_invariant = true, fault),
    );
}

#[test]
fn a_kernel_whose_bits_depend_on_the_size_of_the_batch_is_caught() {
    let fault: fn(&mut [OutArg<'_>], u64) = |outputs, _| {
        let Some(OutArg::Tensor(tensor)) = outputs.first() else { return };
        if tensor.as_view().shape().first().is_some_and(|rows| *rows > 30) {
            change_last_bit(outputs);
        }
    };
    let declare: fn(&mut KernelSpec) = |spec| spec.batch_invariant = true;
    is_caught(Promise::BatchInvariant, &norm_rms::Operation, &wrong(&norm_rms::Operation, declare, fault));
}

#[test]
fn a_kernel_whose_bits_depend_on_the_position_in_the_batch_is_caught() {
    // Always the first item, so that it differs from the same item at another position.
    let fault: fn(&mut [OutArg<'_>], u64) = |outputs, _| change_last_bit(outputs);
    let declare: fn(&mut KernelSpec) = |spec| spec.batch_invariant = true;
    is_caught(Promise::BatchInvariant, &norm_rms::Operation, &wrong(&norm_rms::Operation, declare, fault));
}

/// Requests of different lengths: a part has their pages and queries, and its results are compared request by request.
#[test]
fn a_kernel_whose_requests_depend_on_each_other_is_caught() {
    let declare: fn(&mut KernelSpec) = |spec| spec.batch_invariant = true;
    let of_many: fn(&mut [OutArg<'_>], u64) = |outputs, _| {
        let Some(OutArg::Tensor(tensor)) = outputs.first() else { return };
        if tensor.as_view().shape().first().is_some_and(|rows| *rows > 30) {
            change_last_bit(outputs);
        }
    };
    let always: fn(&mut [OutArg<'_>], u64) = |outputs, _| change_last_bit(outputs);
    let (paged, ragged) = (&attention_gqa_decode_paged::Operation, &attention_gqa_prefill_ragged::Operation);
    for fault in [of_many, always] {
        is_caught(Promise::BatchInvariant, paged, &wrong(paged, declare, fault));
        is_caught(Promise::BatchInvariant, ragged, &wrong(ragged, declare, fault));
    }
}

#[test]
fn a_kernel_that_allocates_is_not_graph_safe() {
    let fault: fn(&mut [OutArg<'_>], u64) = |_, runs| drop(std::hint::black_box(vec![runs; 16]));
    let declare: fn(&mut KernelSpec) = |spec| spec.cuda_graph_safe = true;
    is_caught(Promise::GraphSafe, &norm_rms::Operation, &wrong(&norm_rms::Operation, declare, fault));
}

#[test]
fn a_kernel_that_waits_is_not_graph_safe() {
    let fault: fn(&mut [OutArg<'_>], u64) = |_, _| std::thread::sleep(Duration::from_micros(50));
    let declare: fn(&mut KernelSpec) = |spec| spec.cuda_graph_safe = true;
    is_caught(Promise::GraphSafe, &norm_rms::Operation, &wrong(&norm_rms::Operation, declare, fault));
}

#[test]
fn a_kernel_with_reduced_precision_must_declare_it() {
    let fault: fn(&mut [OutArg<'_>], u64) = |outputs, _| {
        for output in outputs {
            if let OutArg::Tensor(tensor) = output {
                round(tensor);
            }
        }
    };
    let entry = wrong(&norm_rms::Operation, |spec| spec.reduced_precision = false, fault);
    is_caught(Promise::Tolerance, &norm_rms::Operation, &entry);
}

/// The checks accept kernels that keep every promise, so that an error means something.
#[test]
fn a_kernel_that_keeps_its_promises_is_accepted() {
    let entry = lz_test_kernels::runnable();
    let entry = entry.iter().find(|entry| entry.spec.operation == "norm.rms" && !entry.spec.reference);
    let entry = entry.expect("there is a native kernel");
    for promise in Promise::ALL {
        let outcome = check(promise, &norm_rms::Operation, entry, &claims, &effects, 32);
        assert!(outcome.is_ok(), "{promise:?}: {outcome:?}");
    }
}
