//! Every setting has an effect: changing it changes what an engine does, or what a configuration that it reads contains.
//! Settings of code outside this crate are listed with the test that changes them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine_support::{Shape, attend, entry, failing, run, spec};
use lz_core::mode::ReductionOrder;
use lz_core::plan::TransformKind;
use lz_core::{Error, KernelEntry, KernelError, KernelSpec};
use lz_engine::Engine;
use lz_engine::jit::JitConfig;
use lz_engine::mode::{self, KvStrategy, ModeFlag, ModeOverride};
use lz_engine::policy::layer::SettingInput;
use lz_engine::quant::QuantConfig;
use lz_engine::speculative::SpeculativeConfig;
use lz_engine::telemetry::Synchronize;
use lz_engine::tune::TuneOptions;
use lz_schema::policy::SETTINGS;
use lz_test_support::Folder;

use SettingInput::{Bool, Float, Int, Text};

/// A setting, a value other than its default, and what is observed of an engine.
type Probe = (&'static str, SettingInput, fn(&Engine) -> String);

fn with(engine: &Engine, specs: impl IntoIterator<Item = KernelSpec>) {
    register(engine, specs.into_iter().map(entry));
}

fn register(engine: &Engine, kernels: impl IntoIterator<Item = KernelEntry>) {
    engine.register(kernels).unwrap();
}

fn outcome(result: Result<String, Error>) -> String {
    result.unwrap_or_else(|error| error.to_string())
}

fn changed(id: &str, change: impl FnOnce(&mut KernelSpec)) -> KernelSpec {
    let mut one = spec(id).priority(90);
    change(&mut one);
    one
}

fn selected(engine: &Engine, first: KernelSpec) -> String {
    with(engine, [first, spec("reference.x")]);
    outcome(run(engine, &Shape::default()))
}

fn selected_in(engine: &Engine, change: ModeOverride, specs: Vec<KernelSpec>) -> String {
    with(engine, specs);
    let _mode = mode::scope(change);
    outcome(run(engine, &Shape::default()))
}

fn capturing() -> ModeOverride {
    ModeOverride::NONE.set(ModeFlag::Capturing, true)
}

fn jit(engine: &Engine) -> String {
    format!("{:?}", JitConfig::of(|key| engine.setting(key)))
}

fn quant(engine: &Engine) -> String {
    let config = QuantConfig::of(engine);
    format!("{config:?} {}", config.rank("nvfp4"))
}

fn speculative(engine: &Engine) -> String {
    let config = SpeculativeConfig::of(engine);
    format!("{config:?} {}", config.tokens_for(64))
}

fn health(engine: &Engine) -> String {
    format!("{:?}", engine.health().config().kernel)
}

/// A kernel that fails, and a reference: the result of a call, and the state of the circuits.
fn after_a_failure(engine: &Engine) -> String {
    register(engine, [failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]);
    with(engine, [spec("reference.x")]);
    let outcome = outcome(run(engine, &Shape::default()));
    format!("{outcome} {:?}", engine.circuits().iter().map(|one| one.state.to_string()).collect::<Vec<_>>())
}

/// A kernel with an invariant result, one with a variable one.
fn invariant(engine: &Engine, max_tp_size: Option<u32>, order: Option<ReductionOrder>) -> String {
    engine.configure([("tp_invariance.require_tp_invariant".to_owned(), Bool(true))]).unwrap();
    let first = changed("invariant.x", |spec| {
        (spec.tp_invariant, spec.max_tp_size, spec.reduction_order) = (true, max_tp_size, order);
    });
    with(engine, [first, spec("varying.x").priority(50), changed("reference.x", |spec| spec.priority = 0)]);
    outcome(run(engine, &Shape::default()))
}

struct Counting(AtomicUsize);

impl Synchronize for Counting {
    fn synchronize(&self, _: usize) -> Result<(), KernelError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn many_calls(engine: &Engine) -> lz_engine::telemetry::MetricsSnapshot {
    with(engine, [spec("a.x")]);
    for number in 0..200 {
        run(engine, &Shape { heads: 1 + number % 100, ..Shape::default() }).unwrap();
    }
    engine.metrics()
}

fn probes() -> Vec<Probe> {
    vec![
        ("enabled", Bool(false), |engine| selected(engine, changed("a.x", |_| {}))),
        ("fallback_enabled", Bool(false), after_a_failure),
        ("explain_enabled", Bool(false), |engine| {
            with(engine, [spec("a.x")]);
            engine.explain(attend(), &Shape::default().context()).candidates.len().to_string()
        }),
        ("deterministic", Bool(true), |engine| {
            with(
                engine,
                [
                    changed("a.x", |_| {}),
                    changed("exact.x", |spec| (spec.deterministic, spec.priority) = (true, 1)),
                ],
            );
            outcome(run(engine, &Shape::default()))
        }),
        ("strict_mode", Bool(true), adapted),
        ("allow_adaptation", Bool(false), adapted),
        ("allow_reduced_precision", Bool(true), |engine| {
            selected(engine, changed("tf32.x", |spec| spec.reduced_precision = true))
        }),
        ("allow_experimental", Bool(true), |engine| selected(engine, changed("new.x_experimental", |_| {}))),
        ("enable_profiling", Bool(true), |engine| many_calls(engine).execution_latency.count.to_string()),
        ("telemetry.sample_every", Int(20), |engine| many_calls(engine).execution_latency.count.to_string()),
        ("graph_strict_mode", Bool(true), |engine| {
            selected_in(engine, capturing(), vec![changed("a.x", |spec| spec.cuda_graph_safe = true)])
        }),
        ("graph_safety.default_graph_safe", Bool(true), |engine| {
            selected_in(engine, capturing(), vec![spec("a.x")])
        }),
        ("debug", Bool(true), |engine| {
            let device = Arc::new(Counting(AtomicUsize::new(0)));
            engine.set_synchronize(Some(Arc::clone(&device) as Arc<dyn Synchronize>));
            many_calls(engine);
            device.0.load(Ordering::Relaxed).to_string()
        }),
        ("memory_headroom_mb", Int(1), |engine| {
            selected(engine, changed("hungry.x", |spec| spec.workspace = Some("2097152".to_owned())))
        }),
        ("memory.probe", Bool(true), |engine| {
            engine.configure([("memory_headroom_mb".to_owned(), Int(1 << 42))]).unwrap();
            let bytes = Some("1152921504606846976".to_owned());
            selected(engine, changed("hungry.x", |spec| spec.workspace = bytes))
        }),
        ("perfdb.enabled", Bool(false), |engine| engine.perfdb().is_some().to_string()),
        ("perfdb.path", Text("/nonexistent/other.sqlite".to_owned()), |engine| {
            engine.perfdb().map_or_else(String::new, |db| db.path().display().to_string())
        }),
        ("perfdb.tune_samples", Int(3), |engine| TuneOptions::of(engine).max_samples.to_string()),
        ("cache.enabled", Bool(false), |engine| many_calls(engine).cache_hits.to_string()),
        ("cache.max_size", Int(10), |engine| (many_calls(engine).cache_size <= 10).to_string()),
        ("cache.entry_ttl_seconds", Float(0.0), |engine| {
            // Every call reads the clock.
            engine.configure([("telemetry.sample_every".to_owned(), Int(1))]).unwrap();
            many_calls(engine).cache_misses.to_string()
        }),
        ("jit.mode", Text("never".to_owned()), |engine| {
            with(engine, [changed("jit.x", |spec| spec.jit = true), spec("reference.x")]);
            let explanation = engine.explain(attend(), &Shape::default().context());
            explanation.candidate("jit.x").unwrap().reasons[0].code.to_string()
        }),
        ("jit.fail_on_no_fallback", Bool(false), |engine| {
            with(engine, [changed("jit.x", |spec| spec.jit = true)]);
            outcome(run(engine, &Shape::default()))
        }),
        ("jit.enable_background_compile", Bool(false), jit),
        ("jit.compile_queue_max_size", Int(5), jit),
        ("jit.manifest_path", Text("/tmp/other.json".to_owned()), jit),
        ("jit.manifest_stale_days", Int(1), jit),
        ("quant_formats.accuracy_priority", Text("high".to_owned()), quant),
        ("quant_formats.allow_format_fallback", Bool(false), quant),
        ("quant_formats.max_accuracy_drop_percent", Float(1.0), quant),
        ("quant_formats.requantization_enabled", Bool(true), quant),
        ("speculative_decoding.algorithm", Text("eagle".to_owned()), speculative),
        ("speculative_decoding.draft_tp_size", Int(2), speculative),
        ("speculative_decoding.max_draft_tp_size", Int(4), speculative),
        ("speculative_decoding.num_speculative_tokens", Int(8), speculative),
        ("speculative_decoding.adaptive_speculation", Bool(false), speculative),
        ("speculative_decoding.share_kv_cache", Bool(true), speculative),
        ("speculative_decoding.cache_kernel_pairs", Bool(false), speculative),
        ("rollout.shares", Text("a.x@2: 100".to_owned()), |engine| {
            with_second_version(engine, || Ok(()));
            outcome(run(engine, &Shape::default()))
        }),
        ("rollout.canaries", Text("a.x@2: 50".to_owned()), |engine| {
            with_second_version(engine, || Ok(()));
            engine.canaries().len().to_string()
        }),
        ("rollout.canary_calls", Int(5), |engine| canary_state(engine, || Ok(()))),
        ("rollout.canary_max_errors", Int(1000), |engine| {
            canary_state(engine, || Err(KernelError::failed("no")))
        }),
        ("rollout.canary_max_slowdown_percent", Float(1e12), |engine| {
            engine.configure([("rollout.canary_calls".to_owned(), Int(5))]).unwrap();
            canary_state(engine, || {
                std::thread::sleep(std::time::Duration::from_millis(1));
                Ok(())
            })
        }),
        ("circuit_breaker.failure_threshold", Int(1), after_a_failure),
        ("circuit_breaker.success_threshold", Int(9), health),
        ("circuit_breaker.timeout_ms", Int(5), health),
        ("circuit_breaker.half_open_max_calls", Int(9), health),
        ("tp_invariance.require_tp_invariant", Bool(true), |engine| {
            with(
                engine,
                [
                    changed("varying.x", |_| {}),
                    changed("invariant.x", |spec| (spec.tp_invariant, spec.priority) = (true, 1)),
                ],
            );
            outcome(run(engine, &Shape::default()))
        }),
        ("tp_invariance.tp_size", Int(4), |engine| invariant(engine, Some(2), None)),
        ("tp_invariance.reduction_algorithm", Text("ring".to_owned()), |engine| {
            invariant(engine, None, Some(ReductionOrder::Tree))
        }),
        ("tp_invariance.tp_invariant_fallback_mode", Text("best_effort".to_owned()), |engine| {
            engine.configure([("tp_invariance.tp_size".to_owned(), Int(4))]).unwrap();
            invariant(engine, Some(2), None)
        }),
        ("kv_cache.strategy", Text("contiguous".to_owned()), |engine| {
            selected(engine, changed("paged.x", |spec| spec.kv_strategies = vec!["paged".to_owned()]))
        }),
        ("kv_cache.min_driver_version", Text("999.0".to_owned()), |engine| {
            let decode = changed("cuda.decode", |spec| {
                spec.platform = lz_core::device::Platform::Cuda;
                spec.kv_strategies = vec!["virtual".to_owned()];
            });
            with(engine, [decode]);
            let engine = engine.with_device(lz_device::preset("h100").unwrap());
            let _virtual = mode::scope(ModeOverride::NONE.kv(KvStrategy::Virtual));
            engine.which(attend(), &Shape::default().context()).is_ok().to_string()
        }),
    ]
}

/// A kernel and another version of it next to it.
fn with_second_version(engine: &Engine, does: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static) {
    with(engine, [spec("a.x")]);
    let second = changed("a.x", |spec| spec.version = "2".to_owned());
    engine.register_versions([failing(second, does)]).unwrap();
}

/// The state of a canary after some calls.
fn canary_state(
    engine: &Engine,
    does: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static,
) -> String {
    engine.configure([("rollout.canaries".to_owned(), Text("a.x@2: 50".to_owned()))]).unwrap();
    with_second_version(engine, does);
    for _ in 0..40 {
        run(engine, &Shape::default()).unwrap();
    }
    engine.canaries()[0].state.to_owned()
}

/// A kernel of another layout, whose adapter converts.
fn adapted(engine: &Engine) -> String {
    let adapting = changed("adapting.x", |spec| {
        spec.layouts = vec!["BSHD".to_owned()];
        spec.adapts = vec![TransformKind::Layout];
    });
    with(engine, [adapting, spec("reference.x")]);
    outcome(run(engine, &Shape { layout: 1, ..Shape::default() }))
}

/// Settings that code outside of the engine reads, or whose effect is process-wide: the file and the test that changes them.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("log_selections", "bindings/python/tests/light/test_logging.py", "test_log_selections_emits_records"),
    ("verbose", "bindings/python/tests/light/test_logging.py", "test_verbose_and_log_selections_print"),
    ("plan_mode", "lz-ops/tests/blocks.rs", ""),
    ("telemetry.torch_ranges", "bindings/python/tests/torch/test_profiler.py", ""),
    ("backend_isolation", "bindings/python/tests/torch/test_isolation.py", ""),
    ("worker.program", "tests/plugins/tests/settings.rs", ""),
    ("worker.arena_mb", "bindings/python/tests/light/test_worker_processes.py", ""),
    ("worker.arena_limit_mb", "tests/plugins/tests/capacity.rs", ""),
    ("worker.deadline_seconds", "bindings/python/tests/light/test_worker_processes.py", ""),
    ("worker.start_deadline_seconds", "bindings/python/tests/light/test_worker_processes.py", ""),
    ("worker.memory_limit_mb", "bindings/python/tests/torch/test_isolation.py", ""),
    ("worker.cgroup", "bindings/python/tests/torch/test_isolation.py", ""),
    ("plugins.load", "tests/plugins/tests/settings.rs", ""),
    ("plugins.directories", "tests/plugins/tests/loading.rs", ""),
    ("plugins.manifest", "tests/plugins/tests/settings.rs", "trust_settings_of_the_policy_apply"),
    ("plugins.keys", "tests/plugins/tests/settings.rs", "trust_settings_of_the_policy_apply"),
    ("profile", "lz-engine/tests/suite/engine_builder.rs", ""),
    (
        "perfdb.auto_tune",
        "lz-engine/tests/suite/background_tuning.rs",
        "unmeasured_kernels_are_measured_and_selected",
    ),
    (
        "perfdb.auto_tune_budget_percent",
        "lz-engine/tests/suite/background_tuning.rs",
        "measuring_stays_within_its_budget",
    ),
    ("graph_safety.memory_delta_warning_mb", "bindings/python/tests/torch/test_graphs.py", ""),
    ("graph_safety.warmup_iterations", "bindings/python/tests/torch/test_graphs.py", ""),
    ("backend_compatibility.matrix_path", "bindings/python/tests/light/test_backends.py", ""),
    ("backend_compatibility.check_at_load", "bindings/python/tests/light/test_backends.py", ""),
    ("backend_compatibility.fail_on_incompatible", "bindings/python/tests/light/test_backends.py", ""),
    ("tokenizer_cache.enable_namespace_isolation", "bindings/python/tests/light/test_tokenize.py", ""),
    ("tokenizer_cache.validation_rate_initial", "bindings/python/tests/light/test_tokenize.py", ""),
    ("tokenizer_cache.validation_rate_warmup", "bindings/python/tests/light/test_tokenize.py", ""),
    ("tokenizer_cache.validation_rate_stable", "bindings/python/tests/light/test_tokenize.py", ""),
    ("memory.probe_ttl_seconds", "lz-engine/tests/suite/selection_conditions.rs", ""),
    ("distributed.selection_mode", "bindings/python/tests/torch/test_distributed.py", ""),
    ("distributed.version_check_interval", "bindings/python/tests/torch/test_distributed.py", ""),
    ("distributed.on_version_mismatch", "bindings/python/tests/torch/test_distributed.py", ""),
    ("distributed.verify_selections", "bindings/python/tests/torch/test_distributed.py", ""),
    (
        "gpu_generations.sm_to_generation",
        "lz-engine/src/policy/generations.rs",
        "policy_overrides_generation_table",
    ),
    (
        "gpu_generations.generation_to_tc_gen",
        "lz-engine/src/policy/generations.rs",
        "policy_overrides_generation_table",
    ),
    (
        "quant_formats.accuracy_profile",
        "lz-engine/tests/suite/every_setting.rs",
        "a_profile_of_formats_changes_their_ranks",
    ),
    (
        "rollout.canary_max_mismatches",
        "tests/plugins/tests/reload.rs",
        "mismatches_up_to_the_limit_are_tolerated",
    ),
    ("tp_invariance.synchronize_selection", "bindings/python/tests/torch/test_distributed.py", ""),
    ("kv_cache.physical_chunk_size_mb", "bindings/python/tests/torch/test_kv.py", ""),
];

/// Settings whose effect needs hardware that tests do not have: NVML of a GPU.
const NEEDS_HARDWARE: [&str; 1] = ["perf_environment.use_nvml"];

#[test]
fn a_profile_of_formats_changes_their_ranks() {
    let folder = Folder::new();
    folder
        .write("layerzero.yaml", "perfdb: {enabled: false}\nquant_formats: {accuracy_profile: {nvfp4: 3}}\n");
    let rank = |builder: lz_engine::EngineBuilder| QuantConfig::of(&builder.open().unwrap()).rank("nvfp4");
    let usual = rank(Engine::builder().set("perfdb.enabled", Bool(false)));
    assert_ne!(usual, 3);
    assert_eq!(rank(Engine::builder().config(folder.file("layerzero.yaml"))), 3);
}

#[test]
fn changing_a_setting_changes_behavior() {
    for (key, value, observe) in probes() {
        let (folder, other) = (Folder::new(), Folder::new());
        let open = |folder: &Folder, change: Option<SettingInput>| {
            let path = folder.database().display().to_string();
            let mut builder = Engine::builder().operations([attend()]).set("perfdb.path", Text(path));
            builder = builder.set("perf_environment.use_nvml", Bool(false));
            builder = change.into_iter().fold(builder, |builder, value| builder.set(key, value));
            builder.open().unwrap()
        };
        let usual = observe(&open(&folder, None));
        let after = observe(&open(&other, Some(value.clone())));
        assert_ne!(usual, after, "{key} has no effect");
    }
}

#[test]
fn every_setting_is_changed_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (key, file, test) in ELSEWHERE {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let name = key.rsplit('.').next().unwrap_or(key);
        assert!(text.contains(name) && text.contains(test), "{file} does not change {key}");
    }
    let probed = probes();
    let elsewhere = ELSEWHERE.iter().map(|one| one.0).chain(NEEDS_HARDWARE);
    let covered: BTreeSet<&str> = probed.iter().map(|one| one.0).chain(elsewhere).collect();
    let every: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    assert_eq!(covered, every);
    assert_eq!(probed.len() + ELSEWHERE.len() + NEEDS_HARDWARE.len(), every.len(), "each is listed once");
}
