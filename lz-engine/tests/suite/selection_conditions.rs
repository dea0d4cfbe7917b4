//! What a decision depends on besides the call: tensor-parallel ranks, memory blocks, compiled kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::engine_support::{Shape, attend, engine, entry, failing, run, shared, spec};
use lz_core::device::{DeviceSpec, Platform};
use lz_core::reason::ReasonCategory;
use lz_core::{KernelError, Reason, ReasonCode};
use lz_device::FreeMemory;
use lz_engine::Engine;
use lz_engine::bucket::Bucket;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured, MemoryProbe, SystemMemory};
use lz_engine::mode::{self, KvStrategy, ModeOverride, ReductionOrder};
use lz_engine::policy::layer::SettingInput;
use lz_engine::policy::overlay::Overlay;
use lz_engine::policy::{Policy, TpFallback, WithSource};
use lz_engine::tune::TuneOptions;
use lz_perfdb::PerfDb;
use lz_test_support::Folder;

#[test]
fn largest_free_block_is_cached_until_ttl_or_failed_allocation() {
    #[derive(Default)]
    struct Fragmented {
        block: AtomicU32,
        asked: AtomicU32,
    }
    impl MemoryProbe for Fragmented {
        fn free_bytes(&self, _: &DeviceSpec) -> Option<u64> {
            Some(1 << 40)
        }

        fn largest_block(&self, _: &DeviceSpec) -> Option<u64> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Some(u64::from(self.block.load(Ordering::Relaxed)))
        }
    }
    let mut hungry = spec("hungry.x").priority(90);
    hungry.workspace = Some("seq * 1024".to_owned());
    let exhausted = shared(AtomicBool::new(false));
    let fails = exhausted.clone();
    let engine = Engine::new();
    let out_of_memory = move || {
        let reason = Reason::new(ReasonCode::OutOfMemory);
        if fails.load(Ordering::Relaxed) { Err(KernelError::because(reason)) } else { Ok(()) }
    };
    engine.register([failing(hungry, out_of_memory), entry(spec("frugal.x"))]).unwrap();
    let probe = Arc::new(Fragmented::default());
    engine.set_memory_probe(Some(probe.clone()));
    let call = Shape { seq: 1024, ..Shape::default() };
    assert_eq!(run(&engine, &call).unwrap(), "frugal.x", "there is no block of a mebibyte");
    probe.block.store(1 << 20, Ordering::Relaxed);
    assert_eq!(run(&engine, &call).unwrap(), "frugal.x", "what was found out is believed for a minute");
    assert_eq!(probe.asked.load(Ordering::Relaxed), 1);
    let source = WithSource::new(Duration::ZERO, "memory.probe_ttl_seconds");
    engine.set_policy(Policy { probe_time_to_live: source, ..Policy::default() });
    assert_eq!(run(&engine, &call).unwrap(), "hungry.x");
    engine.set_policy(Policy::default());
    assert_eq!(run(&engine, &call).unwrap(), "hungry.x");
    probe.block.store(0, Ordering::Relaxed);
    assert_eq!(run(&engine, &call).unwrap(), "hungry.x");
    exhausted.store(true, Ordering::Relaxed);
    assert_eq!(run(&engine, &call).unwrap(), "frugal.x");
    exhausted.store(false, Ordering::Relaxed);
    assert_eq!(run(&engine, &call).unwrap(), "frugal.x", "the failure was a reason to look again");
}

#[test]
fn tp_invariance_requires_matching_ranks_and_reduction_order() {
    let invariant = |id: &str, priority, most, order| {
        let mut spec = spec(id).priority(priority);
        (spec.tp_invariant, spec.max_tp_size, spec.reduction_order) = (true, most, order);
        spec
    };
    let engine = engine([
        spec("varying.x").priority(99),
        invariant("ringed.x", 90, Some(8), Some(ReductionOrder::Ring)),
        invariant("paired.x", 80, Some(8), Some(ReductionOrder::Tree)),
        invariant("reference.x", 0, None, None),
    ]);
    let invariant = Policy { require_tp_invariant: WithSource::new(true, "test"), ..Policy::default() };
    let ask = |policy: &Policy, ranks| {
        engine.set_policy(policy.clone());
        let _group = mode::scope(ModeOverride::NONE.tp(ranks));
        let explanation = engine.explain(attend(), &Shape::default().context());
        let ran = run(&engine, &Shape::default()).unwrap();
        assert_eq!(explanation.chosen(), Some(ran.as_str()));
        let reasons = explanation.candidates.iter().flat_map(|one| &one.reasons);
        let reasons: Vec<String> = reasons.map(|one| format!("{}: {}", one.code, one.sentence)).collect();
        (ran, reasons)
    };
    assert_eq!(ask(&Policy::default(), 16).0, "varying.x", "invariance is not required");
    let (who, reasons) = ask(&invariant, 8);
    assert_eq!(who, "paired.x");
    let order = "REDUCTION_ORDER_MISMATCH: requires tree (default), found ring";
    assert_eq!(reasons[0], order);
    assert!(reasons[1].starts_with("TP_INVARIANCE_REQUIRED"), "{reasons:?}");
    let (who, reasons) = ask(&invariant, 16);
    assert_eq!(who, "reference.x");
    let size = "TP_SIZE_EXCEEDED: requires at most 8 ranks, found 16 ranks";
    assert_eq!(reasons[..3], [size, size, order]);
    let ring = Policy { reduction_order: WithSource::new(ReductionOrder::Ring, "test"), ..invariant.clone() };
    assert_eq!(ask(&ring, 8).0, "ringed.x");
    let lenient = Policy { tp_fallback: WithSource::new(TpFallback::BestEffort, "test"), ..invariant };
    assert_eq!(ask(&lenient, 16).0, "reference.x", "who keeps the promise comes first");
    assert_eq!(ask(&lenient, 8).0, "paired.x");
}

/// Measurements by the size of the batch: small batches are faster in `small.x`, large ones in `large.x`.
struct BySize;

impl Evidence for BySize {
    fn findings(&self, query: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>)) {
        let is_small = query.bucket == Bucket::of(attend(), &Shape::default().context()).words();
        for (kernel, is_faster) in [("small.x", is_small), ("large.x", !is_small)] {
            let median_ns = if is_faster { 1_000.0 } else { 9_000.0 };
            let measured = Measured { median_ns, samples: 40, age_seconds: 1, confidence: 0.95 };
            visit(&KernelEvidence { kernel, version: "1", capabilities_hash: "", measured });
        }
    }
}

#[test]
fn batch_invariance_selects_one_kernel_for_all_batches() {
    let invariant = |id: &str, priority, limit: Option<&str>| {
        let spec = spec(id).priority(priority);
        let mut spec = match limit {
            Some(limit) => spec.limit(limit, ReasonCode::AxisLimit),
            None => spec,
        };
        spec.batch_invariant = true;
        spec
    };
    let kernels = [invariant("small.x", 80, Some("seq >= 0")), invariant("large.x", 70, None)];
    let (small, large) = (Shape::default(), Shape { batch: 64, ..Shape::default() });
    let both = |engine: &Engine| [run(engine, &small).unwrap(), run(engine, &large).unwrap()];
    let require = ("batch_invariance.require_batch_invariant".to_owned(), SettingInput::Bool(true));
    let measured = engine(kernels.clone());
    measured.set_evidence(Some(Arc::new(BySize)));
    assert_eq!(both(&measured), ["small.x", "large.x"], "the fastest for each size");
    measured.configure([require.clone()]).unwrap();
    assert_eq!(both(&measured), ["small.x", "small.x"], "one kernel for all sizes");
    let others = [spec("varying.x").priority(99), invariant("limited.x", 90, Some("batch <= 8"))];
    let engine = engine(others.into_iter().chain(kernels));
    assert_eq!(both(&engine), ["varying.x", "varying.x"]);
    engine.configure([require]).unwrap();
    assert_eq!(both(&engine), ["small.x", "small.x"]);
    let explanation = engine.explain(attend(), &small.context());
    let reasons = explanation.candidates.iter().flat_map(|one| &one.reasons);
    let reasons: Vec<String> = reasons.map(|one| format!("{}: {}", one.code, one.sentence)).collect();
    assert!(
        reasons.iter().any(|one| one.starts_with("BATCH_INVARIANCE_REQUIRED: Results must not depend")),
        "{reasons:?}"
    );
    assert_eq!(ReasonCode::BatchInvarianceRequired.category(), ReasonCategory::Determinism);
    let limited = "BATCH_INVARIANCE_REQUIRED: requires batches of every size, found batch <= 8";
    assert!(reasons.iter().any(|one| one == limited), "{reasons:?}");
    let anything =
        Overlay::new().set("batch_invariance.require_batch_invariant", SettingInput::Bool(false)).unwrap();
    let scope = engine.scope(anything);
    assert_eq!(both(&engine), ["varying.x", "varying.x"], "a scope can allow more");
    drop(scope);
    assert_eq!(both(&engine), ["small.x", "small.x"]);
}

#[test]
fn tp_size_is_a_setting() {
    let mut small = spec("small.x").priority(90);
    (small.tp_invariant, small.max_tp_size) = (true, Some(2));
    let mut reference = spec("reference.x");
    reference.tp_invariant = true;
    let engine = engine([small, reference]);
    let set = |key: &str, value| engine.configure([(format!("tp_invariance.{key}"), value)]).unwrap();
    set("require_tp_invariant", SettingInput::Bool(true));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "small.x");
    set("tp_size", SettingInput::Int(4));
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
    let narrow = Overlay::new().set("tp_invariance.tp_size", SettingInput::Int(2)).unwrap();
    let scope = engine.scope(narrow);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "small.x");
    drop(scope);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "reference.x");
}

#[test]
fn virtual_kv_cache_requires_a_minimum_driver() {
    let mut decode = spec("cuda.decode");
    decode.platform = Platform::Cuda;
    decode.kv_strategies = vec!["virtual".to_owned()];
    let engine = engine([decode]).with_device(lz_device::preset("h100").unwrap());
    let call = Shape::default().context();
    let _virtual = mode::scope(ModeOverride::NONE.kv(KvStrategy::Virtual));
    assert!(engine.which(attend(), &call).is_ok());
    let oldest = WithSource::new("999.0".to_owned(), "layerzero.yaml:3");
    engine.set_policy(Policy { kv_min_driver: oldest, ..Policy::default() });
    let error = engine.which(attend(), &call).unwrap_err();
    assert!(error.has(ReasonCode::DriverVersionUnsupported), "{error}");
    assert!(error.to_string().contains("999.0 or later for virtual memory (layerzero.yaml:3)"), "{error}");
}

#[test]
fn explanations_can_be_disabled() {
    let engine = engine([spec("a.x").priority(9), spec("b.x")]);
    engine.configure([("explain_enabled".to_owned(), SettingInput::Bool(false))]).unwrap();
    let explanation = engine.explain(attend(), &Shape::default().context());
    assert_eq!((explanation.chosen(), explanation.candidates.len()), (Some("a.x"), 0));
    let text = explanation.to_string();
    assert!(text.contains("a.x is selected; details are disabled: explain_enabled is false"), "{text}");
}

#[test]
fn tuning_samples_are_a_setting() {
    let engine = Engine::new();
    assert_eq!(TuneOptions::of(&engine).max_samples, 20);
    engine.configure([("perfdb.tune_samples".to_owned(), SettingInput::Int(3))]).unwrap();
    let options = TuneOptions::of(&engine);
    assert_eq!((options.min_samples, options.max_samples), (3, 3));
}

#[test]
fn unavailable_database_is_reported_in_explanations() {
    let engine = engine([spec("a.x")]);
    assert!(engine.explain(attend(), &Shape::default().context()).perfdb.is_none());
    assert!(engine.attach_perfdb(shared(PerfDb::disabled()), ""));
    let explanation = engine.explain(attend(), &Shape::default().context());
    let reason = explanation.perfdb.as_ref().map(|reason| (reason.code, reason.sentence.as_str()));
    assert_eq!(reason, Some(("PERFDB_UNAVAILABLE", "cannot be opened: disabled")));
    assert!(explanation.to_string().contains("PERFDB_UNAVAILABLE"), "{explanation}");
}

#[test]
fn cold_kernel_compiles_inside_a_call_only_as_last_resort() {
    let mut cold = spec("jit.x").priority(90);
    cold.jit = true;
    let engine = engine([cold, spec("short.x").limit("batch * seq <= 512", ReasonCode::SeqTooLong)]);
    let short = Shape { batch: 2, seq: 129, ..Shape::default() };
    let long = Shape { batch: 2, seq: 2000, ..Shape::default() };
    assert_eq!(run(&engine, &short).unwrap(), "short.x");
    let error = run(&engine, &long).unwrap_err();
    assert!(error.has(ReasonCode::JitCold) && error.has(ReasonCode::SeqTooLong), "{error}");
    let source = WithSource::new(false, "jit.fail_on_no_fallback");
    engine.set_policy(Policy { fail_on_no_fallback: source, ..Policy::default() });
    // Both calls are in one cell.
    assert_eq!(run(&engine, &short).unwrap(), "short.x");
    let explanation = engine.explain(attend(), &long.context());
    assert_eq!(explanation.chosen(), Some("jit.x"));
    let chosen = explanation.candidate("jit.x").unwrap();
    assert!(chosen.chosen && chosen.reasons[0].code == "JIT_COLD");
    assert_eq!(engine.which(attend(), &long.context()).unwrap().kernel, "jit.x");
    assert_eq!(engine.decide(attend(), &long.context()).unwrap(), "jit.x");
    assert_eq!(
        run(&engine, &short).unwrap(),
        "short.x",
        "it is still cold, and something else can run this call"
    );
    assert_eq!(run(&engine, &long).unwrap(), "jit.x");
    assert_eq!(run(&engine, &short).unwrap(), "jit.x", "it has compiled, and goes by its score now");
}

#[test]
fn system_memory_is_probed_if_enabled() {
    let mut hungry = spec("hungry.x").priority(90);
    hungry.workspace = Some("1152921504606846976".to_owned());
    let mut modest = spec("modest.x").priority(80);
    modest.workspace = Some("4096".to_owned());
    let engine = engine([hungry, modest]);
    let asking = |probe_memory: bool| {
        let policy = Policy { memory_headroom: WithSource::new(None, "test"), ..Policy::default() };
        engine.set_policy(Policy { probe_memory: WithSource::new(probe_memory, "test"), ..policy });
        run(&engine, &Shape::default()).unwrap()
    };
    assert_eq!(asking(false), "hungry.x", "without a known amount of free memory nothing is excluded");
    assert_eq!(asking(true), "modest.x");
    let explanation = engine.explain(attend(), &Shape::default().context());
    let reason = &explanation.candidate("hungry.x").unwrap().reasons[0];
    assert_eq!(reason.code, "MEMORY_HEADROOM_EXCEEDED", "{explanation}");

    // An explicit probe takes precedence over the system.
    let folder = Folder::new();
    std::fs::create_dir_all(folder.file("proc")).unwrap();
    folder.write("proc/meminfo", "MemTotal: 8 kB\nMemAvailable: 2 kB\n");
    let memory = FreeMemory::at(folder.path(), folder.path(), folder.path());
    engine.set_memory_probe(Some(Arc::new(SystemMemory::of(memory))));
    let error = run(&engine, &Shape::default()).unwrap_err();
    assert!(error.to_string().contains("at most 2048 bytes"), "{error}");
}
