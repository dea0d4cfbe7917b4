//! Kernel failures within one call: fallback, error message, health record.

use lz_core::kernel::Severity;
use lz_core::{DType, Error, KernelError, Reason, ReasonCode, Tensor, TensorView};
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag as Asked, ModeOverride};
use lz_engine::policy::{Policy, WithSource};
use lz_engine::registry::BackendState;
use lz_ops::{KV_APPEND, KvAppend, NORM_RMS, NormRms, kv_append, norm_rms};
use lz_scenarios::calls::{Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, full_engine, host_spec, register};
use lz_scenarios::kernels::{kernel_fn, kernel_fn_with, spec};

use super::{bad, engine_with_manual_clock, good};

fn codes(error: &Error) -> Vec<ReasonCode> {
    error.reasons().iter().map(|reason| reason.code).collect()
}

/// A kernel fails during a call: the fallback runs, the caller gets correct values, and the failure is
/// counted.
#[test]
fn a_failed_kernel_falls_back_to_the_next() {
    let engine = lz_scenarios::engines::reference_engine();
    let broken =
        kernel_fn(host_spec("bad.norm.rms").priority(99), &NORM_RMS, || Err(KernelError::failed("no luck")));
    register(&engine, [broken]);
    let x = [3.0f32, 4.0, 0.0, 0.0];
    let args = NormRms::new(TensorView::from_slice(&x, &[1, 4]).unwrap()).eps(0.0);
    let output = norm_rms(&engine, args).unwrap().output;
    assert_eq!(output.view().as_slice::<f32>().unwrap(), [1.2, 1.6, 0.0, 0.0]);
    assert_eq!(engine.fallbacks(), 1);
    assert_eq!(engine.health().summary().counters.failures, 1);
}

/// A kernel panics: the panic is caught, the fallback runs, and the health record holds the panic message.
#[test]
fn a_panic_is_caught_within_the_call() {
    let (engine, _) = engine_with_manual_clock([bad(|| panic!("index out of bounds: the len is 8")), good()]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    engine.set_policy(Policy {
        fallback_enabled: WithSource::new(false, "layerzero.yaml:2"),
        ..Policy::default()
    });
    let error = Norm::rows(100).serve(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    norm.rms: bad.x failed
      [KERNEL_PANICKED]     bad.x: index out of bounds: the len is 8
      [FALLBACK_DISALLOWED] fallback_enabled is false (layerzero.yaml:2)
    ");
}

/// A hanging kernel that is selected (vllm#51492): its adapter reports a timeout, the circuit of the backend
/// opens, and it is not selected again.
#[test]
fn a_hanging_kernel_is_not_selected_twice() {
    let hang = || {
        let reason = Reason::new(ReasonCode::BackendTimeout).message("no answer within 5 s");
        Err(KernelError::because(reason).severity(Severity::Backend))
    };
    let (engine, _) = engine_with_manual_clock([bad(hang), good()]);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    for rows in [1, 100, 5000] {
        assert_eq!(
            Norm::rows(rows).selected(&engine).unwrap(),
            "good.x",
            "every bucket of the backend is shut"
        );
    }
    let explanation = Norm::rows(100).explain(&engine);
    let reason = &explanation.candidate("bad.x").unwrap().reasons[0];
    assert_eq!(reason.code, "CIRCUIT_OPEN");
    assert!(reason.sentence.contains("no answer within 5 s"), "{}", reason.sentence);
}

/// Fallback is disabled: the call fails, and the error names the cause and the policy line that disables
/// fallback.
#[test]
fn a_failure_is_returned_when_fallback_is_disabled() {
    let (engine, _) =
        engine_with_manual_clock([bad(|| Err(KernelError::failed("an illegal instruction"))), good()]);
    apply_policy(&engine, "version: 1\nfallback_enabled: false\n");
    let error = Norm::default().serve(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    norm.rms: bad.x failed
      [KERNEL_FAILED]       an illegal instruction
      [FALLBACK_DISALLOWED] fallback_enabled is false (layerzero.yaml:2)
    ");
    assert_eq!(engine.fallbacks(), 0);
}

/// Every kernel of an operation fails: the error names the first one and lists the reason of each in the
/// order tried.
#[test]
fn when_all_kernels_fail_each_reason_is_reported() {
    let failing = |id: &str, priority, text: &'static str| {
        kernel_fn(host_spec(id).priority(priority), &NORM_RMS, move || Err(KernelError::failed(text)))
    };
    let (engine, _) = engine_with_manual_clock([
        failing("a.x", 30, "first"),
        failing("b.x", 20, "second"),
        failing("c.x", 10, "third"),
    ]);
    let error = Norm::default().serve(&engine).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelFailed; 3]);
    let sentences: Vec<String> = error.reasons().iter().map(|reason| reason.sentence()).collect();
    assert_eq!(sentences, ["first", "second", "third"]);
    assert!(matches!(&error, Error::KernelExecution { kernel, .. } if kernel == "a.x"), "{error}");
}

/// A selected kernel runs out of memory: a kernel with less memory runs the call, and the failure does not
/// lower the kernel's reliability.
#[test]
fn out_of_memory_falls_back_without_penalty() {
    let oom = || Err(KernelError::because(Reason::new(ReasonCode::OutOfMemory).message("4 GiB for scores")));
    let (engine, _) = engine_with_manual_clock([bad(oom), good()]);
    for _ in 0..10 {
        assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
    }
    assert_eq!(Norm::default().explain(&engine).candidate("bad.x").unwrap().score.reliability, 0.0);
    let counters = engine.health().summary().counters;
    assert_eq!((counters.failures, counters.capacity_failures, counters.openings), (0, 10, 0));
    let failures = engine.metrics().failures_by_cause;
    assert_eq!((failures.capacity, failures.total()), (10, 10));
}

/// A kernel allocates more workspace than it declared: the allocation fails, and the fallback runs.
#[test]
fn a_workspace_larger_than_declared_is_rejected() {
    let mut greedy = host_spec("greedy.x").priority(90);
    greedy.workspace = Some("rows * 16".to_owned());
    let greedy = kernel_fn_with(greedy, &NORM_RMS, |_, run| {
        run.workspace(64)?;
        run.workspace(65).map(drop)
    });
    let (engine, _) = engine_with_manual_clock([greedy, good()]);
    assert_eq!(Norm::rows(4).serve(&engine).unwrap(), "good.x");
    engine.unregister_backend("good");
    let error = Norm::rows(4).serve(&engine).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::WorkspaceTooSmall], "{error}");
}

/// Invalid input detected inside a kernel: the call fails, and the kernel's health is unaffected.
#[test]
fn invalid_input_does_not_count_as_a_kernel_failure() {
    let wrong = || Err(KernelError::because(Reason::new(ReasonCode::IndexOutOfRange).message("page 9 of 8")));
    let (engine, _) = engine_with_manual_clock([bad(wrong)]);
    for _ in 0..20 {
        assert!(Norm::default().serve(&engine).unwrap_err().has(ReasonCode::IndexOutOfRange));
    }
    assert_eq!(engine.health().summary().counters.failures, 0);
    assert_eq!(Norm::default().selected(&engine).unwrap(), "bad.x");
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

/// A kernel fails after it started to write to the KV cache: no fallback, because the cache may already be
/// modified.
#[test]
fn no_fallback_after_inputs_may_have_changed() {
    let engine = lz_scenarios::engines::reference_engine();
    let spec = spec("bad.kv.append", &KV_APPEND, "1", lz_core::device::Platform::Cpu).priority(99);
    register(&engine, [kernel_fn(spec, &KV_APPEND, || Err(KernelError::failed("half of it is written")))]);
    let error = append(&engine, &mut caches()).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelFailed, ReasonCode::FallbackDisallowed], "{error}");
    assert!(error.to_string().contains("kv.append changes its inputs"), "{error}");
}

/// The same kernel fails before writing and reports this: the fallback runs, and the cache has the new
/// values.
#[test]
fn a_failure_before_writing_falls_back() {
    let engine = lz_scenarios::engines::reference_engine();
    let spec = spec("bad.kv.append", &KV_APPEND, "1", lz_core::device::Platform::Cpu).priority(99);
    let early = || Err(KernelError::failed("no launch").before_writing());
    register(&engine, [kernel_fn(spec, &KV_APPEND, early)]);
    let mut caches = caches();
    append(&engine, &mut caches).unwrap();
    let view = caches[0].view();
    let stored = view.as_slice::<f32>().unwrap();
    assert_eq!((&stored[..8], &stored[8..16]), (&[0.0; 8][..], &[7.0; 8][..]), "the second slot of the page");
    assert_eq!(engine.fallbacks(), 1);
}

/// The device context is lost: nothing is retried, later calls fail with the same reason until the context is
/// recreated.
#[test]
fn a_lost_device_is_not_retried() {
    let sticky = || Err(KernelError::failed("CUDA_ERROR_ILLEGAL_ADDRESS").severity(Severity::Device));
    let reference = lz_scenarios::kernels::noop_kernel(host_spec("reference.x"), &NORM_RMS);
    let (engine, _) = engine_with_manual_clock([bad(sticky), good(), reference]);
    let error = Norm::default().serve(&engine).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelFailed, ReasonCode::DeviceLost]);
    let error = Norm::rows(100).serve(&engine).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }) && error.has(ReasonCode::DeviceLost), "{error}");
    assert!(error.to_string().contains("restart the process to use it again"), "{error}");
    engine.health().device_recovered(&detect_cpu().uuid);
    // After recovery the engine is degraded: reference kernels first, and the circuit of the failing kernel
    // is still open.
    assert_eq!(Norm::rows(100).serve(&engine).unwrap(), "reference.x");
    assert_eq!(Norm::default().codes(&engine, "bad.x"), ["DEGRADED", "CIRCUIT_OPEN"]);
}

/// A library cannot be imported: its kernels stay listed with the error text, and everything else works.
#[test]
fn a_failed_backend_import_affects_only_that_backend() {
    let engine = engine_on("h100");
    let text = "flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda";
    engine.disable_backend("flash_attn", Reason::new(ReasonCode::BackendImportFailed).message(text));
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "torch.sdpa.flash");
    let explanation = Prefill::llama3_8b().explain(&engine);
    let reason = &explanation.candidate("flash_attn.v3.prefill").unwrap().reasons[0];
    assert_eq!((reason.code, reason.sentence.as_str()), ("BACKEND_IMPORT_FAILED", text));
    let registry = engine.registry();
    let unavailable: Vec<&str> = registry
        .backends()
        .filter(|(_, backend)| backend.state != BackendState::Available)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(unavailable, ["flash_attn"]);
    engine.enable_backend("flash_attn");
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "flash_attn.v3.prefill");
}

/// A graph capture starts and no kernel is known to be capture-safe: a dedicated error, before anything is
/// recorded.
#[test]
fn a_capture_without_a_safe_kernel_is_a_dedicated_error() {
    let (engine, _) = engine_with_manual_clock([good()]);
    let _capture = mode::scope(ModeOverride::NONE.set(Asked::Capturing, true));
    let error = Norm::default().serve(&engine).unwrap_err();
    insta::assert_snapshot!(error, @r"
    norm.rms: no kernel is known to be safe inside a CUDA graph capture
      good.x
        [CUDA_GRAPH_UNSAFE] A graph is being captured and the kernel is not verified as safe for capture.
    ");
    assert!(matches!(error, Error::CudaGraphUnsafe { .. }));
}

/// An operation without any kernel: the error says that none is registered.
#[test]
fn an_operation_without_kernels_is_reported() {
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

/// A plugin with errors in one spec: none of its kernels is registered, and all errors are reported at once.
#[test]
fn registration_of_a_plugin_is_atomic() {
    let engine = full_engine();
    let before = engine.registry().kernels().count();
    let wrong = host_spec("plugin.wrong").limit("hiden <= 64", ReasonCode::AxisLimit).priority(101);
    let right = lz_scenarios::kernels::noop_kernel(host_spec("plugin.right"), &NORM_RMS);
    let wrong = lz_scenarios::kernels::noop_kernel(wrong, &NORM_RMS);
    let error = engine.register([right, wrong]).unwrap_err();
    insta::assert_snapshot!(error, @r"
    plugin.wrong: invalid; nothing was registered
      plugin.wrong: priority is 101; expected 0 to 100
      plugin.wrong: limit `hiden <= 64`: unknown name `hiden`; did you mean `hidden`?
    ");
    assert_eq!(engine.registry().kernels().count(), before);
}

/// Two plugins register the same kernel id: the second is rejected, the first keeps working.
#[test]
fn a_duplicate_kernel_id_is_rejected() {
    let (engine, _) = engine_with_manual_clock([good()]);
    let error = engine.register([good()]).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelDuplicate], "{error}");
    assert_eq!(Norm::default().serve(&engine).unwrap(), "good.x");
}
