//! One call on which a kernel breaks: who steps in, what is said, what is remembered.

use lz_core::kernel::Severity;
use lz_core::{DType, Error, KernelError, Reason, ReasonCode, Tensor, TensorView};
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_engine::mode::{self, Ask as Asked, ModeChange};
use lz_engine::policy::{Policy, Sourced};
use lz_engine::registry::BackendState;
use lz_ops::{KV_APPEND, KvAppend, NORM_RMS, NormRms, kv_append, norm_rms, reference_engine};
use lz_scenarios::calls::{Ask, Norm, Prefill};
use lz_scenarios::house::{govern, host_spec, house, house_on, register};
use lz_scenarios::kernels::{doing, doing_with, spec};

use super::{bad, clocked, good};

fn codes(error: &Error) -> Vec<ReasonCode> {
    error.reasons().iter().map(|reason| reason.code).collect()
}

/// A kernel fails in the middle of a call: the next one does its work, the caller gets right values, and it is counted.
#[test]
fn the_next_kernel_does_the_work_of_one_that_failed() {
    let engine = reference_engine();
    let broken =
        doing(host_spec("bad.norm.rms").priority(99), &NORM_RMS, || Err(KernelError::failed("no luck")));
    register(&engine, [broken]);
    let x = [3.0f32, 4.0, 0.0, 0.0];
    let args = NormRms::new(TensorView::from_slice(&x, &[1, 4]).unwrap()).eps(0.0);
    let output = norm_rms(&engine, args).unwrap().output;
    assert_eq!(output.view().as_slice::<f32>().unwrap(), [1.2, 1.6, 0.0, 0.0]);
    assert_eq!(engine.fallbacks(), 1);
    assert_eq!(engine.health().summary().counters.failures, 1);
}

/// A kernel panics: the panic ends inside of the call, the next kernel runs, and the text of the panic is in the health.
#[test]
fn a_panic_ends_inside_of_the_call() {
    let (engine, _) = clocked([bad(|| panic!("index out of bounds: the len is 8")), good()]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    engine.set_policy(Policy {
        fallback_enabled: Sourced::new(false, "layerzero.yaml:2"),
        ..Policy::default()
    });
    let error = Norm::rows(100).serve(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    norm.rms: bad.x failed
      [KERNEL_PANICKED]     bad.x: index out of bounds: the len is 8
      [FALLBACK_DISALLOWED] fallback_enabled is false (layerzero.yaml:2)
    ");
}

/// A hanging kernel that wins (vllm#51492): its adapter gives up with a timeout, the backend is shut, and it does not win again.
#[test]
fn a_hanging_kernel_does_not_win_twice() {
    let hang = || {
        let reason = Reason::new(ReasonCode::BackendTimeout).message("no answer within 5 s");
        Err(KernelError::because(reason).severity(Severity::Backend))
    };
    let (engine, _) = clocked([bad(hang), good()]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    for rows in [1, 100, 5000] {
        assert_eq!(
            Norm::rows(rows).chosen(&engine).unwrap(),
            "good.x",
            "every bucket of the backend is shut"
        );
    }
    let explanation = Norm::rows(100).explain(&engine);
    let reason = &explanation.candidate("bad.x").unwrap().reasons[0];
    assert_eq!(reason.code, "CIRCUIT_OPEN");
    assert!(reason.sentence.contains("no answer within 5 s"), "{}", reason.sentence);
}

/// Falling back is forbidden, because its cost would hide: the failure is the caller's, with the cause and the line that forbids.
#[test]
fn a_failure_is_the_callers_where_falling_back_is_forbidden() {
    let (engine, _) = clocked([bad(|| Err(KernelError::failed("an illegal instruction"))), good()]);
    govern(&engine, "version: 1\nfallback_enabled: false\n");
    let error = Norm::default().serve(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    norm.rms: bad.x failed
      [KERNEL_FAILED]       an illegal instruction
      [FALLBACK_DISALLOWED] fallback_enabled is false (layerzero.yaml:2)
    ");
    assert_eq!(engine.fallbacks(), 0);
}

/// Every kernel of an operation fails: the error names the first and gives the reason of each in the order of trying.
#[test]
fn when_all_fail_each_reason_is_told() {
    let failing = |id: &str, priority, text: &'static str| {
        doing(host_spec(id).priority(priority), &NORM_RMS, move || Err(KernelError::failed(text)))
    };
    let (engine, _) =
        clocked([failing("a.x", 30, "first"), failing("b.x", 20, "second"), failing("c.x", 10, "third")]);
    let error = Norm::default().serve(&engine).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelFailed; 3]);
    let sentences: Vec<String> = error.reasons().iter().map(|reason| reason.sentence()).collect();
    assert_eq!(sentences, ["first", "second", "third"]);
    assert!(matches!(&error, Error::KernelExecution { kernel, .. } if kernel == "a.x"), "{error}");
}

/// A kernel runs out of memory although it was chosen: a leaner one runs the call, and the failure is not held against the kernel.
#[test]
fn out_of_memory_goes_to_a_leaner_kernel() {
    let oom = || Err(KernelError::because(Reason::new(ReasonCode::OutOfMemory).message("4 GiB for scores")));
    let (engine, _) = clocked([bad(oom), good()]);
    for _ in 0..10 {
        assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    }
    assert_eq!(Norm::default().explain(&engine).candidate("bad.x").unwrap().score.reliability, 0.0);
    let counters = engine.health().summary().counters;
    assert_eq!((counters.failures, counters.capacity_failures, counters.openings), (0, 10, 0));
    let failures = engine.metrics().failures_by_cause;
    assert_eq!((failures.capacity, failures.total()), (10, 10));
}

/// A kernel takes more scratch memory than it declared: it is refused, so that what is declared stays true, and another runs.
#[test]
fn a_kernel_that_takes_more_than_it_declared_is_refused() {
    let mut greedy = host_spec("greedy.x").priority(90);
    greedy.workspace = Some("rows * 16".to_owned());
    let greedy = doing_with(greedy, &NORM_RMS, |_, run| {
        run.workspace(64)?;
        run.workspace(65).map(drop)
    });
    let (engine, _) = clocked([greedy, good()]);
    assert_eq!(Norm::rows(4).serve(&engine).unwrap(), "good.x");
    engine.unregister_backend("good");
    let error = Norm::rows(4).serve(&engine).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::MemoryHeadroomExceeded], "{error}");
}

/// The caller's own mistake surfaces inside of a kernel: it is an error of that call and says nothing about the kernel.
#[test]
fn a_callers_mistake_does_not_count_against_a_kernel() {
    let wrong = || Err(KernelError::because(Reason::new(ReasonCode::IndexOutOfRange).message("page 9 of 8")));
    let (engine, _) = clocked([bad(wrong)]);
    for _ in 0..20 {
        assert!(Norm::default().serve(&engine).unwrap_err().has(ReasonCode::IndexOutOfRange));
    }
    assert_eq!(engine.health().summary().counters.failures, 0);
    assert_eq!(Norm::default().chosen(&engine).unwrap(), "bad.x");
}

fn append(engine: &Engine, cache: &mut [Tensor; 2]) -> Result<(), Error> {
    let (k, slots) = ([7.0f32; 8], [1i64]);
    let k = TensorView::from_slice(&k, &[1, 2, 4]).unwrap();
    let [k_cache, v_cache] = cache;
    let args = KvAppend::new(
        k,
        k,
        k_cache.view_mut(),
        v_cache.view_mut(),
        TensorView::from_slice(&slots, &[1]).unwrap(),
    );
    kv_append(engine, args).map(drop)
}

fn caches() -> [Tensor; 2] {
    [(); 2].map(|()| Tensor::zeros(&[1, 4, 2, 4], DType::F32).unwrap())
}

/// A kernel fails after it began to write into the cache: nobody repeats its work, because the cache may be changed already.
#[test]
fn nothing_is_repeated_on_inputs_that_may_have_changed() {
    let engine = reference_engine();
    let spec = spec("bad.kv.append", &KV_APPEND, "1", lz_core::device::Platform::Cpu).priority(99);
    register(&engine, [doing(spec, &KV_APPEND, || Err(KernelError::failed("half of it is written")))]);
    let error = append(&engine, &mut caches()).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelFailed, ReasonCode::FallbackDisallowed], "{error}");
    assert!(error.to_string().contains("kv.append changes its inputs"), "{error}");
}

/// The same kernel fails before it wrote anything and says so: the next one does the work, and the cache holds it.
#[test]
fn what_failed_before_writing_is_done_by_another() {
    let engine = reference_engine();
    let spec = spec("bad.kv.append", &KV_APPEND, "1", lz_core::device::Platform::Cpu).priority(99);
    let early = || Err(KernelError::failed("no launch").before_writing());
    register(&engine, [doing(spec, &KV_APPEND, early)]);
    let mut caches = caches();
    append(&engine, &mut caches).unwrap();
    let view = caches[0].view();
    let stored = view.as_slice::<f32>().unwrap();
    assert_eq!(
        (&stored[..8], &stored[8..16]),
        (&[0.0; 8][..], &[7.0; 8][..]),
        "the second place of the page"
    );
    assert_eq!(engine.fallbacks(), 1);
}

/// The device's context is lost: nothing is tried again in it, every later call is told so, and only a new context helps.
#[test]
fn a_lost_device_is_not_tried_again() {
    let sticky = || Err(KernelError::failed("CUDA_ERROR_ILLEGAL_ADDRESS").severity(Severity::Device));
    let reference = lz_scenarios::kernels::quiet(host_spec("reference.x"), &NORM_RMS);
    let (engine, _) = clocked([bad(sticky), good(), reference]);
    let error = Norm::default().serve(&engine).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelFailed, ReasonCode::DeviceLost]);
    let error = Norm::rows(100).serve(&engine).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }) && error.has(ReasonCode::DeviceLost), "{error}");
    assert!(error.to_string().contains("restart the process to use it again"), "{error}");
    engine.health().device_recovered(&detect_cpu().uuid);
    // With a new context it begins carefully: references first, and whoever took the device down is still suspect.
    assert_eq!(Norm::rows(100).serve(&engine).unwrap(), "reference.x");
    assert_eq!(Norm::default().codes(&engine, "bad.x"), ["DEGRADED", "CIRCUIT_OPEN"]);
}

/// A library fails to import on one machine: its kernels stay visible with the text of the failure, everything else works.
#[test]
fn a_backend_that_cannot_be_imported_harms_nobody() {
    let engine = house_on("h100");
    let text = "flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda";
    engine.disable_backend("flash_attn", Reason::new(ReasonCode::BackendImportFailed).message(text));
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "torch.sdpa.flash");
    let explanation = Prefill::llama3_8b().explain(&engine);
    let reason = &explanation.candidate("flash_attn.v3.prefill").unwrap().reasons[0];
    assert_eq!((reason.code, reason.sentence.as_str()), ("BACKEND_IMPORT_FAILED", text));
    let registry = engine.registry();
    let troubled: Vec<&str> = registry
        .backends()
        .filter(|(_, backend)| backend.state != BackendState::Available)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(troubled, ["flash_attn"]);
    engine.enable_backend("flash_attn");
    assert_eq!(Prefill::llama3_8b().chosen(&engine).unwrap(), "flash_attn.v3.prefill");
}

/// A capture begins and no kernel is known to be safe in it: an error of its own kind, before anything is recorded wrongly.
#[test]
fn a_capture_without_a_safe_kernel_is_an_error_of_its_own() {
    let (engine, _) = clocked([good()]);
    let _capture = mode::scope(ModeChange::NONE.set(Asked::Capturing, true));
    let error = Norm::default().serve(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    norm.rms: no kernel is known to be safe inside a CUDA graph capture
      good.x
        [CUDA_GRAPH_UNSAFE] A graph is being captured and the kernel is not verified as safe for capture.
    ");
    assert!(matches!(error, Error::CudaGraphUnsafe { .. }));
}

/// An operation has no kernel at all on this engine: the error says that none is registered, not that none fits.
#[test]
fn an_operation_without_kernels_says_so() {
    let engine = Engine::new();
    let error = Norm::default().serve(&engine).unwrap_err();
    assert_eq!(
        error.to_string(),
        "norm.rms: no kernel can run this call; none is registered for the operation"
    );
    assert!(
        Norm::default().explain(&engine).to_string().contains("no kernel is registered for this operation")
    );
}

/// A plugin with a mistake in one of its specs: none of its kernels is registered, and every mistake is told at once.
#[test]
fn a_plugin_with_a_mistake_is_refused_whole() {
    let engine = house();
    let before = engine.registry().kernels().count();
    let wrong = host_spec("plugin.wrong").limit("hiden <= 64", ReasonCode::AxisLimit).priority(101);
    let right = lz_scenarios::kernels::quiet(host_spec("plugin.right"), &NORM_RMS);
    let wrong = lz_scenarios::kernels::quiet(wrong, &NORM_RMS);
    let error = engine.register([right, wrong]).unwrap_err();
    insta::assert_snapshot!(error, @r"
    plugin.wrong: invalid; nothing was registered
      plugin.wrong: priority is 101; expected 0 to 100
      plugin.wrong: limit `hiden <= 64`: unknown name `hiden`; did you mean `hidden`?
    ");
    assert_eq!(engine.registry().kernels().count(), before);
}

/// Two plugins bring the same kernel id: the second is refused, the first goes on.
#[test]
fn a_second_kernel_of_the_same_name_is_refused() {
    let (engine, _) = clocked([good()]);
    let error = engine.register([good()]).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelDuplicate], "{error}");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
}
