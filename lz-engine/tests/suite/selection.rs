//! Selection from registry to dispatch: reasons, score terms, and behavior after a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine_support::{Shape, attend, engine, entry, failing, run, spec};
use lz_core::device::{DeviceSpec, Platform};
use lz_core::kernel::Severity;
use lz_core::plan::TransformKind;
use lz_core::spec::StrideNeeds;
use lz_core::{DType, Error, KernelEntry, KernelError, KernelSpec, Reason, ReasonCode, Run};
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured, MemoryProbe};
use lz_engine::mode::{self, KvStrategy, ModeFlag, ModeOverride};
use lz_engine::policy::{Action, JitPolicy, ListEntry, Lock, Pattern, Policy, Provenance, Rule, WithSource};
use lz_engine::{Engine, HeldSnapshot};

fn codes(error: &Error) -> Vec<ReasonCode> {
    error.reasons().iter().map(|reason| reason.code).collect()
}

fn refused(shape: &Shape, spec: KernelSpec) -> Error {
    match run(&engine([spec]), shape) {
        Ok(who) => panic!("{who} ran"),
        Err(error) => error,
    }
}

fn listed(pattern: &str) -> ListEntry {
    ListEntry {
        kernels: Pattern::new(pattern),
        operations: Pattern::any(),
        source: Provenance::new("layerzero.yaml:3"),
    }
}

fn rule(condition: &str, action: Action) -> Rule {
    Rule {
        name: String::new(),
        operations: Pattern::any(),
        condition: Some(condition.to_owned()),
        actions: vec![action],
        source: Provenance::new("layerzero.yaml:9"),
    }
}

#[test]
fn highest_priority_wins_and_ties_go_by_id() {
    let engine = engine([
        spec("b.x").priority(50),
        spec("a.x").priority(50),
        spec("c.x").priority(90).dtype("T", &[DType::F32]),
    ]);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
    assert_eq!(run(&engine, &Shape { dtype: DType::F32, ..Shape::default() }).unwrap(), "c.x");
    let plan = engine.which(attend(), &Shape::default().context()).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.fallbacks), ("a.x", vec!["b.x".to_owned()]));
}

#[test]
fn all_reasons_of_a_kernel_are_reported() {
    let mut wrong =
        spec("cuda.x").dtype("T", &[DType::F16]).limit("head_dim <= 32", ReasonCode::HeadDimTooLarge);
    wrong = wrong.limit("heads % 3 == 0 and seq < 100", ReasonCode::AxisLimit);
    wrong.platform = Platform::Cuda;
    wrong.layouts = vec!["BSHD".to_owned()];
    wrong.strides = StrideNeeds::Contiguous;
    wrong.alignment = 16;
    wrong.prepacked_weights = true;
    let shape = Shape { layout: 1, strides: (false, true, 2), ..Shape::default() };
    let error = refused(&shape, wrong);
    insta::assert_snapshot!(error, @r"
    demo.attend: no kernel can run this call
      cuda.x
        [PLATFORM_MISMATCH]       requires cuda, found cpu
        [DTYPE_UNSUPPORTED]       T: requires f16, found bf16
        [LAYOUT_UNSUPPORTED]      requires BSHD, found BHSD
        [NOT_CONTIGUOUS]          q: requires dense row-major memory, found other strides
        [ALIGNMENT_REQUIRED]      q: requires an address that is a multiple of 16 bytes, found a multiple of 4
        [PACKED_WEIGHTS_REQUIRED] The kernel requires packed weights.
        [HEAD_DIM_TOO_LARGE]      requires head_dim <= 32, found head_dim = 64
        [AXIS_LIMIT]              requires heads % 3 == 0, found heads = 8
    ");
}

#[test]
fn mode_comes_from_policy_and_thread() {
    let engine = engine([spec("fast.x").priority(90), {
        let mut safe = spec("safe.x").priority(10);
        (safe.deterministic, safe.cuda_graph_safe) = (true, true);
        safe
    }]);
    let shape = Shape::default();
    assert_eq!(run(&engine, &shape).unwrap(), "fast.x");
    {
        let _capturing = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
        assert_eq!(run(&engine, &shape).unwrap(), "safe.x");
    }
    assert_eq!(run(&engine, &shape).unwrap(), "fast.x");
    engine.set_policy(Policy { deterministic: WithSource::new(true, "test"), ..Policy::default() });
    assert_eq!(run(&engine, &shape).unwrap(), "safe.x");
    engine.unregister_backend("safe");
    assert_eq!(codes(&run(&engine, &shape).unwrap_err()), [ReasonCode::NonDeterministic]);
    engine.set_policy(Policy::default());
    let _capturing = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
    let error = run(&engine, &shape).unwrap_err();
    assert!(matches!(error, Error::CudaGraphUnsafe { .. }), "{error}");
}

#[test]
fn kv_strategies_and_tensor_parallel_invariance_are_limits() {
    let mut paged = spec("paged.x");
    paged.kv_strategies = vec!["paged".to_owned()];
    let engine = engine([paged]);
    let shape = Shape::default();
    assert!(run(&engine, &shape).is_ok());
    let _virtual =
        mode::scope(ModeOverride::NONE.kv(KvStrategy::Virtual).set(ModeFlag::TensorParallelInvariant, true));
    let error = run(&engine, &shape).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::TpInvarianceRequired, ReasonCode::KvStrategyUnsupported]);
}

#[test]
fn adapters_convert_with_a_penalty_unless_strict() {
    let mut adapting = spec("adapting.x").priority(50);
    adapting.layouts = vec!["BSHD".to_owned()];
    adapting.adapts = vec![TransformKind::Layout];
    adapting.transform_cost = 15;
    let engine = engine([adapting, spec("plain.x").priority(40)]);
    let other = Shape { layout: 1, ..Shape::default() };
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "adapting.x");
    assert_eq!(run(&engine, &other).unwrap(), "plain.x");
    engine.unregister_backend("plain");
    let plan = engine.which(attend(), &other.context()).unwrap();
    assert_eq!(
        (plan.transforms.to_string(), plan.transform_cost, plan.score),
        ("layout".to_owned(), 15.0, 35.0)
    );
    engine.set_policy(Policy { strict_mode: WithSource::new(true, "test"), ..Policy::default() });
    assert_eq!(codes(&run(&engine, &other).unwrap_err()), [ReasonCode::StrictModeTransform]);
}

#[test]
fn locks_apply_or_return_an_error() {
    let engine = engine([spec("a.x").priority(90), spec("b.x").limit("seq <= 100", ReasonCode::SeqTooLong)]);
    let lock = |operation: &str, kernel: &str| Policy {
        locks: vec![Lock {
            operation: Pattern::new(operation),
            kernel: kernel.to_owned(),
            condition: None,
            source: Provenance::new("LAYERZERO_LOCK_ATTENTION"),
        }],
        ..Policy::default()
    };
    let short = Shape { seq: 64, ..Shape::default() };
    engine.set_policy(lock("demo.attend", "b.x"));
    assert_eq!(run(&engine, &short).unwrap(), "b.x");
    let error = run(&engine, &Shape::default()).unwrap_err();
    insta::assert_snapshot!(error, @r"
    demo.attend: locked to b.x, which cannot run this call; unlock it or change the call
      [LOCKED_KERNEL_INVALID] demo.attend is locked to b.x (LAYERZERO_LOCK_ATTENTION)
      [SEQ_TOO_LONG]          requires seq <= 100, found seq = 256
    ");
    engine.set_policy(lock("demo.attend", "c.x"));
    let error = run(&engine, &short).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::KernelUnknown], "{error}");

    // An alias fixes params, and its lock applies where they have those values.
    engine.set_policy(lock("demo.attend_causal", "b.x"));
    assert_eq!(run(&engine, &short).unwrap(), "a.x");
    assert_eq!(run(&engine, &Shape { causal: true, ..short }).unwrap(), "b.x");
}

#[test]
fn lists_and_rules_score_and_exclude() {
    let engine = engine([spec("a.x").priority(50), spec("b.x").priority(45), spec("c.x").priority(1)]);
    let shape = Shape::default();
    engine.set_policy(Policy { prefer: vec![listed("b")], ..Policy::default() });
    assert_eq!(run(&engine, &shape).unwrap(), "b.x");
    engine.set_policy(Policy { avoid: vec![listed("a.*")], ..Policy::default() });
    assert_eq!(run(&engine, &shape).unwrap(), "b.x");
    engine.set_policy(Policy { allow: vec![listed("c")], ..Policy::default() });
    assert_eq!(run(&engine, &shape).unwrap(), "c.x");
    engine.set_policy(Policy { deny: vec![listed("*")], ..Policy::default() });
    assert_eq!(codes(&run(&engine, &shape).unwrap_err()), [ReasonCode::PolicyDenied; 3]);

    let long = Shape { seq: 5000, ..Shape::default() };
    let with = |rules: Vec<Rule>| engine.set_policy(Policy { rules, ..Policy::default() });
    with(vec![rule("seq_len > 4096", Action::Override("c.x".to_owned()))]);
    assert_eq!((run(&engine, &shape).unwrap(), run(&engine, &long).unwrap()), ("a.x".into(), "c.x".into()));
    with(vec![rule("batch * seq > 4096 and dtype == bf16", Action::Boost(Pattern::new("b.x"), 6.0))]);
    assert_eq!((run(&engine, &shape).unwrap(), run(&engine, &long).unwrap()), ("a.x".into(), "b.x".into()));
    with(vec![rule("scale > 2", Action::Lock("c.x".to_owned()))]);
    let scaled = Shape { scale: 3.0, ..Shape::default() };
    assert_eq!((run(&engine, &shape).unwrap(), run(&engine, &scaled).unwrap()), ("a.x".into(), "c.x".into()));
    with(vec![rule("platform == cpu and sm < 0", Action::Filter("priority < 50".to_owned()))]);
    assert_eq!(run(&engine, &shape).unwrap(), "b.x");
    with(vec![rule("no_such_axis > 1", Action::Deny(Pattern::any()))]);
    assert_eq!(run(&engine, &shape).unwrap(), "a.x");
}

#[test]
fn disabled_engine_runs_references_only() {
    let engine = engine([spec("fast.x").priority(90), spec("reference.x")]);
    engine.set_policy(Policy { enabled: WithSource::new(false, "LAYERZERO_DISABLED"), ..Policy::default() });
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
}

#[test]
fn disabled_backend_keeps_its_reason() {
    let engine = engine([spec("a.x")]);
    let reason = Reason::new(ReasonCode::BackendImportFailed).message("undefined symbol; run `lz doctor a`");
    engine.disable_backend("a", reason);
    let error = run(&engine, &Shape::default()).unwrap_err();
    assert!(error.to_string().contains("undefined symbol"), "{error}");
    engine.enable_backend("a");
    assert!(run(&engine, &Shape::default()).is_ok());
}

#[test]
fn workspace_is_checked_against_headroom_and_free_memory_per_call() {
    struct Free(AtomicU32);
    impl MemoryProbe for Free {
        fn free_bytes(&self, _: &DeviceSpec) -> Option<u64> {
            Some(u64::from(self.0.load(Ordering::Relaxed)))
        }
    }
    let mut hungry = spec("hungry.x").priority(90);
    hungry.workspace = Some("seq * 1024".to_owned());
    let engine = engine([hungry, spec("frugal.x")]);
    let shape = |seq| Shape { seq, ..Shape::default() };
    assert_eq!(run(&engine, &shape(1 << 12)).unwrap(), "hungry.x");
    assert_eq!(run(&engine, &shape(1 << 21)).unwrap(), "frugal.x");
    assert_eq!(run(&engine, &shape(1 << 12)).unwrap(), "hungry.x");
    let free = Arc::new(Free(AtomicU32::new(1 << 30)));
    engine.set_memory_probe(Some(free.clone()));
    for (bytes, who) in [(1 << 30, "hungry.x"), (1 << 20, "frugal.x"), (1 << 30, "hungry.x")] {
        free.0.store(bytes, Ordering::Relaxed);
        assert_eq!(run(&engine, &shape(1 << 12)).unwrap(), who);
    }
    assert_eq!(engine.which(attend(), &shape(4096).context()).unwrap().workspace_bytes, 4096 * 1024);
}

#[test]
fn launch_must_fit_the_device() {
    let mut tiled = spec("cuda.tiled");
    tiled.platform = Platform::Cuda;
    tiled.grid = Some(["seq".to_owned(), "batch * heads".to_owned(), "1".to_owned()]);
    tiled.block = Some("head_dim * 8".to_owned());
    let engine = engine([tiled]).with_device(lz_device::preset("h100").unwrap());
    let ask = |shape: Shape| engine.which(attend(), &shape.context());
    assert!(ask(Shape::default()).is_ok());
    let large = || Shape { batch: 1 << 14, ..Shape::default() };
    let split = ask(large()).unwrap().split.expect("as a whole it cannot be launched");
    assert_eq!((split.axis.as_str(), split.part), ("batch", 1 << 12));
    // A strict call gets the reason.
    let strict = mode::scope(ModeOverride::NONE.set(ModeFlag::Strict, true));
    let error = ask(large()).unwrap_err();
    drop(strict);
    insta::assert_snapshot!(error, @r"
    demo.attend: no kernel can run this call
      cuda.tiled
        [CUDA_GRID_DIM_EXCEEDED] requires batch * heads at most 65535 in y, found 131072
    ");
    let error = ask(Shape { head_dim: 256, ..Shape::default() }).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::CudaBlockLimitExceeded], "{error}");
    // It can be explained, but not run.
    assert_eq!(codes(&run(&engine, &Shape::default()).unwrap_err()), [ReasonCode::DeviceAbsent]);
}

#[test]
fn simulated_devices_can_be_explained() {
    let on = |id: &str, platform, change: &dyn Fn(&mut KernelSpec)| {
        let mut spec = spec(id).priority(50);
        spec.platform = platform;
        change(&mut spec);
        spec
    };
    let engine = engine([
        on("hopper.x", Platform::Cuda, &|spec| spec.device.instruction_set = Some("wgmma".to_owned())),
        on("blackwell.x", Platform::Cuda, &|spec| {
            spec.device.generations = vec!["blackwell".to_owned()];
            spec.device.min_tensor_core_generation = Some(5);
        }),
        on("old.x", Platform::Cuda, &|spec| (spec.device.max_sm, spec.priority) = (Some(89), 90)),
        on("amd.x", Platform::Rocm, &|_| {}),
        on("gaudi.x", Platform::Hpu, &|_| {}),
        on("avx512.x", Platform::Cpu, &|spec| {
            (spec.device.isa, spec.priority) = (vec!["avx512f".to_owned()], 90);
        }),
        on("plain.x", Platform::Cpu, &|_| {}),
    ]);
    let chosen = |preset: &str| {
        let device = lz_device::preset(preset).unwrap();
        engine.with_device(device).which(attend(), &Shape::default().context()).map(|plan| plan.kernel)
    };
    for (preset, kernel) in [
        ("h100", "hopper.x"),
        ("b200", "blackwell.x"),
        ("a100", "old.x"),
        ("mi300x", "amd.x"),
        ("gaudi3", "gaudi.x"),
        ("laptop-cpu", "plain.x"),
    ] {
        assert_eq!(chosen(preset).unwrap(), kernel, "{preset}");
    }
    let h100 = engine.with_device(lz_device::preset("h100").unwrap());
    let only: Policy = Policy { allow: vec![listed("blackwell"), listed("old")], ..Policy::default() };
    h100.set_policy(only);
    let error = h100.which(attend(), &Shape::default().context()).unwrap_err();
    for code in [
        ReasonCode::GpuGenerationUnsupported,
        ReasonCode::TensorCoreGenUnsupported,
        ReasonCode::SmTooNew,
        ReasonCode::PolicyNotAllowed,
    ] {
        assert!(error.has(code), "{code}: {error}");
    }
}

#[test]
fn device_tensors_cannot_be_passed_to_a_worker() {
    let on_cuda = |id: &str| {
        let mut spec = spec(id);
        spec.platform = Platform::Cuda;
        spec
    };
    let mut far = on_cuda("cuda.far").priority(90);
    far.runs_in = Some("a worker process".to_owned());
    let alone = engine([far.clone()]).with_device(lz_device::preset("h100").unwrap());
    let error = alone.which(attend(), &Shape::default().context()).unwrap_err();
    assert!(
        error.has(ReasonCode::PlatformMismatch)
            && error.to_string().contains("cannot be passed to another process"),
        "{error}"
    );
    let both = engine([far, on_cuda("cuda.near")]).with_device(lz_device::preset("h100").unwrap());
    assert_eq!(both.which(attend(), &Shape::default().context()).unwrap().kernel, "cuda.near");
}

#[test]
fn cold_kernel_is_requested_and_skipped() {
    let mut jit = spec("jit.x").priority(90);
    jit.jit = true;
    let engine = engine([jit, spec("ready.x")]);
    let shape = Shape::default();
    assert_eq!(run(&engine, &shape).unwrap(), "ready.x");
    engine.mark_warm("jit.x", attend(), &shape.context());
    assert_eq!(run(&engine, &shape).unwrap(), "jit.x");
    assert_eq!(run(&engine, &Shape { head_dim: 128, ..shape.clone() }).unwrap(), "ready.x");
    engine.set_policy(Policy { jit: WithSource::new(JitPolicy::Never, "test"), ..Policy::default() });
    assert_eq!(run(&engine, &shape).unwrap(), "ready.x");
}

#[test]
fn measurements_affect_selection_by_confidence() {
    struct Known {
        slower_ns: f64,
        confidence: f64,
    }
    impl Evidence for Known {
        fn findings(&self, _: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>)) {
            for (kernel, median_ns) in [("a.x", self.slower_ns), ("b.x", 100.0)] {
                let measured =
                    Measured { median_ns, samples: 40, age_seconds: 9, confidence: self.confidence };
                visit(&KernelEvidence { kernel, version: "1", capabilities_hash: "", measured });
                let other = Measured { median_ns: 1.0, ..measured };
                visit(&KernelEvidence { kernel, version: "another", capabilities_hash: "", measured: other });
            }
        }
    }
    let engine = engine([spec("a.x").priority(60), spec("b.x").priority(40)]);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
    for (slower_ns, confidence, chosen) in
        [(101.0, 1.0, "b.x"), (101.0, 0.1, "a.x"), (200.0, 0.1, "b.x"), (200.0, 0.001, "a.x")]
    {
        engine.set_evidence(Some(Arc::new(Known { slower_ns, confidence })));
        assert_eq!(run(&engine, &Shape::default()).unwrap(), chosen, "{slower_ns} ns at {confidence}");
    }
}

fn with_failing(error: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static) -> Engine {
    let engine = Engine::new();
    engine.register([failing(spec("bad.x").priority(90), error), entry(spec("good.x"))]).unwrap();
    engine
}

#[test]
fn failures_fall_back_and_open_the_circuit() {
    let engine = with_failing(|| Err(KernelError::failed("no luck")));
    let shape = Shape::default();
    for _ in 0..20 {
        assert_eq!(run(&engine, &shape).unwrap(), "good.x");
    }
    let error_free = engine.which(attend(), &shape.context()).unwrap();
    assert_eq!((error_free.kernel.as_str(), error_free.fallbacks.len()), ("good.x", 0));
    assert!(engine.fallbacks() < 20 && engine.fallbacks() > 0, "{}", engine.fallbacks());
    engine.set_policy(Policy { allow: vec![listed("bad")], ..Policy::default() });
    let last = run(&engine, &shape).unwrap_err();
    assert!(
        last.has(ReasonCode::KernelFailed) && !last.has(ReasonCode::CircuitOpen),
        "nothing else is left: {last}"
    );
    // Another bucket has its own circuit.
    let error = run(&engine, &Shape { head_dim: 32, ..shape }).unwrap_err();
    assert!(matches!(error, Error::KernelExecution { .. }) && error.has(ReasonCode::KernelFailed), "{error}");
}

#[test]
fn interrupted_call_does_not_fall_back() {
    let engine = with_failing(|| Err(KernelError::interrupted("Ctrl-C")));
    for _ in 0..10 {
        let error = run(&engine, &Shape::default()).unwrap_err();
        let codes: Vec<ReasonCode> = error.reasons().iter().map(|reason| reason.code).collect();
        assert_eq!(codes, [ReasonCode::CallInterrupted]);
    }
    assert!(engine.health().has_no_records());
    assert_eq!(engine.health().summary().counters.caller_failures, 10);
}

#[test]
fn reference_runs_although_its_circuit_is_open() {
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let breaks = Arc::clone(&broken);
    let fails = move || match breaks.load(std::sync::atomic::Ordering::Relaxed) {
        true => Err(KernelError::failed("for now")),
        false => Ok(()),
    };
    let engine = Engine::new();
    engine.register([failing(spec("reference.x"), fails)]).unwrap();
    for _ in 0..8 {
        let error = run(&engine, &Shape::default()).unwrap_err();
        assert!(error.has(ReasonCode::KernelFailed) && !error.has(ReasonCode::CircuitOpen), "{error}");
    }
    assert!(engine.circuits()[0].refuses(), "{:?}", engine.circuits());
    broken.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
    assert_eq!(engine.which(attend(), &Shape::default().context()).unwrap().kernel, "reference.x");
    assert_eq!(engine.reset_kernel(Some("reference.x")), Ok(1));
    assert!(engine.circuits().is_empty());
}

#[test]
fn open_circuit_kernel_is_the_last_fallback() {
    let engine = with_failing(|| Err(KernelError::failed("no luck")));
    let health = engine.health();
    let uuid = lz_device::detect_cpu().uuid;
    // Five failures of the fallback, recorded in health only.
    let bucket = lz_engine::bucket::Bucket::of(attend(), &Shape::default().context());
    for _ in 0..5 {
        let subject = lz_engine::health::Subject {
            kernel: "good.x",
            kernel_version: "1",
            bucket: bucket.words(),
            backend: "good",
            backend_version: "1",
            device: &uuid,
        };
        health.admit(subject).unwrap().failed(lz_engine::health::Failure::of_kernel("before"));
    }
    assert!(engine.circuits().iter().any(|one| one.name == "good.x" && one.refuses()));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "good.x");
}

#[test]
fn panic_is_a_kernel_failure() {
    let engine = with_failing(|| panic!("boom"));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "good.x");
    engine.set_policy(Policy {
        fallback_enabled: WithSource::new(false, "layerzero.yaml:2"),
        ..Policy::default()
    });
    let error = run(&engine, &Shape { seq: 1, ..Shape::default() }).unwrap_err();
    insta::assert_snapshot!(error, @r"
    demo.attend: bad.x failed
      [KERNEL_PANICKED]     bad.x: boom
      [FALLBACK_DISALLOWED] fallback_enabled is false (layerzero.yaml:2)
    ");
}

#[test]
fn lost_device_refuses_all_calls() {
    let engine = with_failing(|| Err(KernelError::failed("sticky").severity(Severity::Device)));
    let error = run(&engine, &Shape::default()).unwrap_err();
    assert!(error.has(ReasonCode::DeviceLost), "{error}");
    let error = run(&engine, &Shape { seq: 1, ..Shape::default() }).unwrap_err();
    assert!(error.has(ReasonCode::DeviceLost) && matches!(error, Error::NoKernel { .. }), "{error}");
}

#[test]
fn kernel_may_call_the_engine() {
    let engine = Engine::new();
    let inner = engine.clone();
    let depth = AtomicU32::new(0);
    let recursing = failing(spec("outer.x").priority(90), move || {
        if depth.fetch_add(1, Ordering::Relaxed) < 3 {
            let who = run(&inner, &Shape::default());
            assert_eq!(who.unwrap(), "outer.x");
        }
        Ok(())
    });
    engine.register([recursing]).unwrap();
    for _ in 0..3 {
        assert_eq!(run(&engine, &Shape::default()).unwrap(), "outer.x");
    }
}

#[test]
fn invalid_specs_are_rejected_with_all_errors() {
    let mut wrong = spec("wrong.x")
        .dtype("W", &[DType::F32])
        .limit("head_dims <= 64", ReasonCode::HeadDimTooLarge)
        .limit("head_dim", ReasonCode::HeadDimTooLarge)
        .priority(101);
    wrong.alignment = 48;
    wrong.layouts = vec!["NHD".to_owned()];
    wrong.workspace = Some("1.5".to_owned());
    wrong.device.isa = vec!["avx1024".to_owned()];
    wrong.kv_strategies = vec!["paper".to_owned()];
    let engine = Engine::new();
    let error = engine.register([entry(spec("right.x")), entry(wrong), entry(spec("right.x"))]).unwrap_err();
    insta::assert_snapshot!(error, @r"
    wrong.x, right.x: invalid; nothing was registered
      wrong.x: priority is 101; expected 0 to 100
      wrong.x: alignment is 48 bytes; expected a power of two from 1 to 64
      wrong.x: demo.attend has no dtype variable `W`; it has T
      wrong.x: `layout` has no case NHD; it has BSHD, BHSD
      wrong.x: unknown KV-cache strategy `paper`; expected one of contiguous, paged, virtual, unified
      wrong.x: limit `head_dims <= 64`: unknown name `head_dims`; did you mean `head_dim`?
      wrong.x: limit `head_dim`: the expression requires bool, found int
      wrong.x: workspace `1.5`: the expression requires int, found float
      wrong.x: unknown instruction set `avx1024`
      kernel right.x is already registered for demo.attend; ids must be unique within an operation
    ");
    assert_eq!(engine.registry().kernels().count(), 0);
    let unknown = KernelSpec::new("a.x", "no.such", "a", "1", Platform::Cpu);
    let error = engine
        .register([KernelEntry::new(unknown, crate::engine_support::Does(Box::new(|| Ok(()))))])
        .unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::OperationUnknown], "{error}");
}

const TWO: [&str; 2] = ["demo.first", "demo.second"];

/// Two operations behind one alias, `demo.both`.
fn two() -> [&'static lz_core::OperationInfo; 2] {
    static BOTH: std::sync::OnceLock<[&'static lz_core::OperationInfo; 2]> = std::sync::OnceLock::new();
    *BOTH.get_or_init(|| {
        TWO.map(|name| {
            let text = format!(
                r#"
operation: {name}
version: 1
summary: One of two.
doc: "output = x"
aliases:
  demo.both: {{ loud: true }}
axes:
  n: {{ role: feature, select: exact, fuzz: [1, 2] }}
types:
  T: [f32]
inputs:
  x: {{ shape: [n], dtype: T, doc: "In." }}
params:
  loud: {{ type: bool, default: false, doc: "How." }}
outputs:
  output: {{ shape: [n], dtype: T }}
semantics: {{ nan: propagate }}
equivalence:
  exact: true
workloads:
  small: {{ n: 4, T: f32 }}
"#
            );
            lz_core::dynamic::read_operation(&format!("{name}.yaml"), &text)
                .unwrap_or_else(|error| panic!("{error}"))
        })
    })
}

fn of_two(id: &str, operation: &'static lz_core::OperationInfo, priority: u8) -> KernelEntry {
    let backend = id.split('.').next().unwrap_or(id);
    let spec = KernelSpec::new(id, &operation.name, backend, "1", Platform::Cpu).priority(priority);
    KernelEntry::new(spec, crate::engine_support::Does(Box::new(|| Ok(())))).of(operation)
}

/// A call of one of the two, loud or not.
fn chosen(engine: &Engine, operation: &'static lz_core::OperationInfo, loud: bool) -> Result<String, Error> {
    let mut context = lz_core::Context::of(&operation.fields);
    for field in operation.fields.iter() {
        if loud && field.name == "loud" {
            context.set(field.store, 1);
        }
        if field.kind == lz_core::context::FieldKind::DType {
            context.set(field.store, DType::F32 as u64);
        }
    }
    engine.decide(operation, &context)
}

#[test]
fn one_id_may_name_kernels_of_several_operations() {
    let [first, second] = two();
    let engine = Engine::new();
    engine.register([of_two("shared.x", first, 10), of_two("shared.x", second, 10)]).unwrap();
    assert_eq!(engine.registry().kernels_named("shared.x").count(), 2);
    assert_eq!(chosen(&engine, first, false).unwrap(), "shared.x");
    assert_eq!(chosen(&engine, second, false).unwrap(), "shared.x");
    let error = engine.register([of_two("shared.x", second, 5)]).unwrap_err();
    assert!(error.has(ReasonCode::KernelDuplicate), "{error}");
    assert_eq!(engine.registry().kernels().count(), 2);
}

#[test]
fn lock_applies_to_what_it_names() {
    let [first, second] = two();
    let engine = Engine::new();
    engine
        .register([
            of_two("best.x", first, 90),
            of_two("best.x", second, 90),
            of_two("shared.x", first, 10),
            of_two("shared.x", second, 10),
            of_two("only.x", first, 10),
        ])
        .unwrap();
    let lock = |operation: &str, kernel: &str| {
        engine.set_policy(Policy {
            locks: vec![Lock {
                operation: Pattern::new(operation),
                kernel: kernel.to_owned(),
                condition: None,
                source: Provenance::new("test"),
            }],
            ..Policy::default()
        });
    };
    // An alias applies to each of its operations if the call has its params.
    lock("demo.both", "shared.x");
    for operation in [first, second] {
        assert_eq!(chosen(&engine, operation, true).unwrap(), "shared.x");
        assert_eq!(chosen(&engine, operation, false).unwrap(), "best.x");
    }
    // A pattern applies to the operations of its kernel.
    lock("demo.*", "only.x");
    assert_eq!(chosen(&engine, first, false).unwrap(), "only.x");
    assert_eq!(chosen(&engine, second, false).unwrap(), "best.x");
    // An unknown kernel is an error, never another selection.
    lock("demo.*", "nobody.x");
    assert!(matches!(chosen(&engine, first, false), Err(Error::Locked { .. })));
    // A rule without an operation applies to every operation of the kernel.
    let mut everywhere = rule("loud", Action::Lock("only.x".to_owned()));
    everywhere.operations = Pattern::any();
    engine.set_policy(Policy { rules: vec![everywhere], ..Policy::default() });
    assert_eq!(chosen(&engine, first, true).unwrap(), "only.x");
    assert_eq!(chosen(&engine, second, true).unwrap(), "best.x");
    assert_eq!(chosen(&engine, first, false).unwrap(), "best.x");
}

#[test]
fn strict_graph_mode_requires_a_trial_capture() {
    let mut safe = spec("safe.x");
    safe.cuda_graph_safe = true;
    let engine = engine([safe]);
    let shape = Shape::default();
    engine.set_policy(Policy { graph_strict_mode: WithSource::new(true, "test"), ..Policy::default() });
    assert!(run(&engine, &shape).is_ok(), "outside a capture nothing is asked");
    let _capturing = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
    let error = run(&engine, &shape).unwrap_err();
    assert!(matches!(error, Error::CudaGraphUnsafe { .. }), "{error}");
    assert!(error.to_string().contains("has not passed a trial capture"), "{error}");
    engine.mark_captured("safe.x", attend(), &shape.context());
    assert_eq!(run(&engine, &shape).unwrap(), "safe.x");
    // A trial of one bucket does not apply to others.
    let other = Shape { dtype: DType::F16, ..Shape::default() };
    assert!(matches!(run(&engine, &other), Err(Error::CudaGraphUnsafe { .. })));
}

#[test]
fn calls_are_decided_under_a_held_snapshot() {
    let engine = engine([spec("first.x").priority(60), spec("second.x").priority(50)]);
    let shape = Shape::default();
    let pinned = |moment: &HeldSnapshot| {
        let mut who = String::new();
        let mut run_one = |entry: &KernelEntry, run: &mut Run<'_>| {
            who.clone_from(&entry.spec.id);
            entry.kernel.run(&mut [], &mut [], run)
        };
        engine.dispatch_with_snapshot(moment, attend(), &shape.context(), &mut run_one).map(|()| who)
    };
    let before = engine.hold_snapshot();
    assert_eq!(pinned(&before).unwrap(), "first.x");
    engine.register([entry(spec("third.x").priority(90))]).unwrap();
    assert_eq!(run(&engine, &shape).unwrap(), "third.x");
    assert_eq!(pinned(&before).unwrap(), "first.x", "it was not there at that moment");
    assert_eq!(pinned(&engine.hold_snapshot()).unwrap(), "third.x");
    // Modes belong to the thread: a held snapshot does not make an unsafe call safe.
    let _capturing = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
    assert!(matches!(pinned(&before), Err(Error::CudaGraphUnsafe { .. })));
}

#[test]
fn failing_kernel_of_a_held_snapshot_falls_back() {
    let engine = engine([spec("second.x").priority(50)]);
    let fails = || Err(KernelError::failed("no").before_writing());
    engine.register([failing(spec("first.x").priority(60), fails)]).unwrap();
    let moment = engine.hold_snapshot();
    for _ in 0..2 {
        let mut tried = Vec::new();
        let mut run_one = |entry: &KernelEntry, run: &mut Run<'_>| {
            tried.push(entry.spec.id.clone());
            entry.kernel.run(&mut [], &mut [], run)
        };
        engine.dispatch_with_snapshot(&moment, attend(), &Shape::default().context(), &mut run_one).unwrap();
        assert_eq!(tried, ["first.x", "second.x"]);
    }
}

#[test]
fn policy_decides_without_an_invariant_kernel() {
    use lz_engine::policy::TpFallback;
    let mut reference = spec("reference.x");
    reference.tp_invariant = true;
    let engine = engine([spec("fast.x").priority(90), reference]);
    let with = |fallback: TpFallback| {
        engine.set_policy(Policy {
            require_tp_invariant: WithSource::new(true, "test"),
            tp_fallback: WithSource::new(fallback, "test"),
            ..Policy::default()
        });
        run(&engine, &Shape::default())
    };
    assert_eq!(with(TpFallback::Reference).unwrap(), "reference.x");
    assert!(with(TpFallback::Error).unwrap_err().has(ReasonCode::TpInvarianceRequired));
    assert_eq!(with(TpFallback::BestEffort).unwrap(), "reference.x", "it promises, so it comes first");
    engine.unregister_backend("reference");
    assert_eq!(with(TpFallback::BestEffort).unwrap(), "fast.x");
    assert!(with(TpFallback::Reference).is_err());
}
