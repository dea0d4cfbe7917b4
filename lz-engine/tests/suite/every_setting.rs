//! Every setting has an effect: changing it changes what an engine does.
//! Settings of code outside this crate are listed with the test that changes them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine_support::{Shape, attend, entry, failing, run, spec};
use crate::speculative_and_quant::{in_format, packed};
use lz_core::kernel::{CompileRequest, Compiled};
use lz_core::mode::ReductionOrder;
use lz_core::plan::TransformKind;
use lz_core::{
    Context, Error, HandlePredicate, KernelEntry, KernelError, KernelSpec, OperationInfo, Reason, ReasonCode,
};
use lz_engine::Engine;
use lz_engine::health::ManualClock;
use lz_engine::jit::{JitConfig, JitQueue};
use lz_engine::mode::{self, KvStrategy, ModeFlag, ModeOverride};
use lz_engine::policy::layer::SettingInput;
use lz_engine::quant::{FormatCall, QuantConfig};
use lz_engine::speculative::{ModelCall, SpeculativeConfig};
use lz_engine::telemetry::Synchronize;
use lz_engine::tune::{Outcome, TuneOptions};
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

/// Judges a call when somebody waits for it.
#[derive(Default)]
pub(crate) struct Judged(pub AtomicUsize);

impl HandlePredicate for Judged {
    fn objection(&self, _: &OperationInfo, _: &Context) -> Option<Reason> {
        let is_settled = self.0.load(Ordering::Relaxed) > 0;
        (!is_settled).then(|| Reason::new(ReasonCode::TokenizerVerifying))
    }

    fn settle(&self, _: &OperationInfo, _: &Context) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn pending(&self) -> Option<String> {
        let is_settled = self.0.load(Ordering::Relaxed) > 0;
        (!is_settled).then(|| "a handle is not judged".to_owned())
    }
}

fn capturing() -> ModeOverride {
    ModeOverride::NONE.set(ModeFlag::Capturing, true)
}

/// An engine with a kernel that is compiled in the background, and the queue that compiles it once the sender is dropped.
fn compiling(engine: &Engine) -> (JitQueue, Sender<()>) {
    let (release, gate): (Sender<()>, Receiver<()>) = channel();
    let gate = Mutex::new(gate);
    let compiled = KernelEntry::new(
        changed("jit.x", |spec| spec.jit = true),
        crate::engine_support::Does(Box::new(|| Ok(()))),
    )
    .of(attend())
    .compiled_by(move |_: &CompileRequest<'_>| {
        gate.lock().unwrap().recv().ok();
        Ok(Compiled::default())
    });
    register(engine, [compiled, entry(spec("plain.x"))]);
    (JitQueue::start(engine, "demo", jit_config(engine)), release)
}

fn jit_config(engine: &Engine) -> JitConfig {
    JitConfig::of(|key| engine.setting(key))
}

/// How many of 20 shapes were compiled in the background, and how many did not fit into the queue.
fn compiled_shapes(engine: &Engine) -> String {
    let (queue, release) = compiling(engine);
    for heads in 1..=20 {
        run(engine, &Shape { heads, ..Shape::default() }).unwrap();
    }
    drop(release);
    if jit_config(engine).background {
        assert!(queue.wait_until_idle(Duration::from_secs(60)));
    }
    let counters = queue.counters();
    queue.stop();
    format!("{} compiled, {} dropped", counters.compiled > 0, counters.dropped > 0)
}

/// How many entries of the manifest that a queue wrote are read when it is three days old.
fn manifest_after_three_days(engine: &Engine) -> String {
    let (queue, release) = compiling(engine);
    run(engine, &Shape::default()).unwrap();
    drop(release);
    assert!(queue.wait_until_idle(Duration::from_secs(60)));
    queue.stop();
    let config = jit_config(engine);
    let path = config.manifest.clone().unwrap();
    let mut written: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let time = written["written_at"].as_u64().unwrap();
    written["written_at"] = (time - 3 * 24 * 60 * 60).into();
    std::fs::write(&path, written.to_string()).unwrap();
    let queue = JitQueue::start(engine, "demo", config);
    format!("{} entries", queue.manifest().entries().count())
}

/// The format that is selected for new data, and for data that is stored in another format.
fn formats(engine: &Engine) -> String {
    let kernel = |id: &str, priority: u8, format: &str| {
        let mut spec =
            KernelSpec::new(id, "demo.packed", "b", "1", lz_core::device::Platform::Cpu).priority(priority);
        spec.quant_formats = vec![format.to_owned()];
        KernelEntry::new(spec, crate::engine_support::Does(Box::new(|| Ok(())))).of(packed())
    };
    register(engine, [kernel("b.int4", 50, "int4"), kernel("b.mxfp4", 80, "mxfp4")]);
    let contexts = [in_format(0), in_format(1)];
    let calls: Vec<FormatCall<'_>> = ["int4", "mxfp4"]
        .iter()
        .zip(&contexts)
        .map(|(format, context)| FormatCall { format, operation: packed(), context })
        .collect();
    let config = QuantConfig::of(engine);
    let choose = |stored| match engine.choose_format(&config, stored, &calls) {
        Ok(choice) => format!("{} {}", choice.format, choice.requantize),
        Err(error) => error.to_string(),
    };
    format!("{}; {}", choose(None), choose(Some("int8")))
}

/// The pair of kernels of a draft model and a target model of another dtype, whether it is cached, and the number of drafted tokens.
fn speculation(engine: &Engine) -> String {
    let eagle = changed("eagle.x", |spec| {
        spec.priority = 10;
        spec.speculative_algorithms = vec!["eagle".to_owned()];
    });
    with(engine, [changed("plain.x", |_| {}), eagle]);
    let draft = Shape { dtype: lz_core::DType::F16, ..Shape::default() }.context();
    let target = Shape::default().context();
    let side = |context| ModelCall { operation: attend(), context, pipeline_stages: 1 };
    let pair = match engine.speculative_pair(side(&draft), side(&target)) {
        Ok(pair) => format!("{} {}", pair.draft, pair.target),
        Err(error) => error.to_string(),
    };
    let config = SpeculativeConfig::of(engine);
    let (few, many) = (config.tokens_for(1), config.tokens_for(64));
    format!("{pair}, {} cached, {few} and {many} tokens", engine.cached_pairs())
}

/// The clock of the engines of this thread.
fn clock() -> Arc<ManualClock> {
    thread_local!(static CLOCK: Arc<ManualClock> = Arc::new(ManualClock::starting_at(1_000_000)));
    CLOCK.with(Arc::clone)
}

/// A kernel that fails once: the kernel that runs in each of the next 40 seconds, and the state of its circuit.
fn recovery(engine: &Engine) -> String {
    engine.configure([("circuit_breaker.failure_threshold".to_owned(), Int(1))]).unwrap();
    let runs = AtomicUsize::new(0);
    let once = move || match runs.fetch_add(1, Ordering::Relaxed) {
        0 => Err(KernelError::failed("once")),
        _ => Ok(()),
    };
    register(engine, [failing(spec("once.x").priority(90), once)]);
    with(engine, [spec("reference.x")]);
    let mut all = Vec::new();
    for _ in 0..40 {
        let kernel = run(engine, &Shape::default()).unwrap();
        let states: Vec<String> = engine.circuits().iter().map(|one| one.state.to_string()).collect();
        all.push(format!("{kernel} {}", states.join(" ")));
        clock().advance(Duration::from_secs(1));
    }
    all.join(", ")
}

/// The environment that tuning records; a host reports its memory pressure.
fn recorded_environment(engine: &Engine) -> String {
    samples(engine);
    let rows = engine.perfdb().unwrap().show(&lz_perfdb::Filter::default(), usize::MAX);
    format!("{:?}", rows[0].key.environment)
}

/// How many samples of each kernel tuning takes.
fn samples(engine: &Engine) -> String {
    with(engine, [spec("a.x"), spec("b.x")]);
    let zero = Duration::ZERO;
    let options =
        TuneOptions { deviations: 1e9, turn_time: zero, sample_time: zero, ..TuneOptions::of(engine) };
    let context = Shape::default().context();
    let tuned = engine
        .tune(attend(), &context, &options, &mut |_, _| Ok(()), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    let counts = tuned.kernels.iter().map(|(_, outcome)| match outcome {
        Outcome::Measured(timing) => timing.samples.to_string(),
        other => format!("{other:?}"),
    });
    counts.collect::<Vec<_>>().join(" ")
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
        // Off in every engine of this test, so that measurements of a busy machine agree.
        ("perf_environment.use_nvml", Bool(true), recorded_environment),
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
        ("tokenizer_verification.before_first_call", Bool(true), |engine| {
            let judged = entry(spec("judged.x").priority(90)).judged_by(Judged::default());
            register(engine, [judged, entry(spec("reference.x"))]);
            outcome(run(engine, &Shape::default()))
        }),
        ("perfdb.enabled", Bool(false), |engine| engine.perfdb().is_some().to_string()),
        ("perfdb.path", Text("/nonexistent/other.sqlite".to_owned()), |engine| {
            engine.perfdb().map_or_else(String::new, |db| db.path().display().to_string())
        }),
        ("perfdb.tune_samples", Int(3), samples),
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
        ("jit.enable_background_compile", Bool(false), compiled_shapes),
        ("jit.compile_queue_max_size", Int(5), compiled_shapes),
        ("jit.manifest_stale_days", Int(1), manifest_after_three_days),
        ("quant_formats.accuracy_priority", Text("high".to_owned()), formats),
        ("quant_formats.allow_format_fallback", Bool(false), formats),
        ("quant_formats.max_accuracy_drop_percent", Float(1.0), formats),
        ("quant_formats.requantization_enabled", Bool(true), formats),
        ("speculative_decoding.algorithm", Text("eagle".to_owned()), speculation),
        ("speculative_decoding.draft_tp_size", Int(2), speculation),
        ("speculative_decoding.max_draft_tp_size", Int(4), |engine| {
            engine.configure([("speculative_decoding.draft_tp_size".to_owned(), Int(2))]).unwrap();
            speculation(engine)
        }),
        ("speculative_decoding.num_speculative_tokens", Int(8), speculation),
        ("speculative_decoding.adaptive_speculation", Bool(false), speculation),
        ("speculative_decoding.share_kv_cache", Bool(true), speculation),
        ("speculative_decoding.cache_kernel_pairs", Bool(false), speculation),
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
        ("circuit_breaker.success_threshold", Int(1), recovery),
        ("circuit_breaker.timeout_ms", Int(5), recovery),
        ("circuit_breaker.half_open_max_calls", Int(1), recovery),
        ("batch_invariance.require_batch_invariant", Bool(true), |engine| {
            with(
                engine,
                [
                    changed("varying.x", |_| {}),
                    changed("invariant.x", |spec| (spec.batch_invariant, spec.priority) = (true, 1)),
                ],
            );
            outcome(run(engine, &Shape::default()))
        }),
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
    ("plan_wider_dtypes", "lz-ops/tests/blocks.rs", "wider_dtypes_are_planned_if_the_policy_allows_them"),
    ("plan_dequantization", "lz-ops/tests/blocks.rs", "inputs_are_dequantized_if_the_policy_allows_it"),
    ("telemetry.torch_ranges", "bindings/python/tests/torch/test_profiler.py", ""),
    ("backend_isolation", "bindings/python/tests/torch/test_isolation.py", ""),
    ("worker.program", "tests/plugins/tests/settings.rs", ""),
    ("worker.arena_mb", "bindings/python/tests/light/test_worker_processes.py", ""),
    ("worker.arena_limit_mb", "tests/plugins/tests/capacity.rs", ""),
    ("worker.deadline_seconds", "bindings/python/tests/light/test_worker_processes.py", ""),
    ("worker.start_deadline_seconds", "bindings/python/tests/light/test_worker_processes.py", ""),
    ("worker.memory_limit_mb", "bindings/python/tests/torch/test_isolation.py", ""),
    ("worker.cgroup", "bindings/python/tests/torch/test_isolation.py", ""),
    ("worker.sandbox", "tests/plugins/tests/sandbox.rs", "a_confined_worker_reaches_nothing_of_its_host"),
    ("worker.open_files", "tests/plugins/tests/sandbox.rs", "limits_of_a_backend_apply_to_its_worker"),
    ("worker.cpu_seconds", "tests/plugins/tests/sandbox.rs", "limits_of_a_backend_apply_to_its_worker"),
    ("worker.data_mb", "tests/plugins/tests/sandbox.rs", "limits_of_a_backend_apply_to_its_worker"),
    ("plugins.load", "tests/plugins/tests/settings.rs", ""),
    ("plugins.directories", "tests/plugins/tests/loading.rs", ""),
    ("plugins.manifest", "tests/plugins/tests/settings.rs", "trust_settings_of_the_policy_apply"),
    ("plugins.keys", "tests/plugins/tests/settings.rs", "trust_settings_of_the_policy_apply"),
    ("profile", "lz-engine/tests/suite/engine_builder.rs", ""),
    ("watchdog_seconds", "lz-engine/tests/suite/watchdog.rs", "a_kernel_that_hangs_is_reported_and_avoided"),
    ("verify", "lz-engine/tests/suite/verification.rs", "verification_is_off_by_default"),
    ("verify_share", "lz-engine/tests/suite/verification.rs", "a_share_of_cache_hits_is_verified"),
    (
        "verify_memory_mb",
        "lz-engine/tests/suite/verification.rs",
        "calls_beyond_the_memory_limit_are_dropped_and_counted",
    ),
    (
        "verify_directory",
        "lz-engine/tests/suite/verification.rs",
        "a_wrong_kernel_is_quarantined_for_its_bucket_and_reproduced",
    ),
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
        "jit.manifest_path",
        "lz-engine/tests/suite/every_setting.rs",
        "the_manifest_of_shapes_is_written_where_the_setting_says",
    ),
    (
        "quant_formats.accuracy_profile",
        "lz-engine/tests/suite/every_setting.rs",
        "a_profile_of_formats_changes_the_selected_one",
    ),
    (
        "rollout.canary_max_mismatches",
        "tests/plugins/tests/reload.rs",
        "mismatches_up_to_the_limit_are_tolerated",
    ),
    ("tp_invariance.synchronize_selection", "bindings/python/tests/torch/test_distributed.py", ""),
    ("kv_cache.physical_chunk_size_mb", "bindings/python/tests/torch/test_kv.py", ""),
];

#[test]
fn a_profile_of_formats_changes_the_selected_one() {
    let folder = Folder::new();
    folder
        .write("layerzero.yaml", "perfdb: {enabled: false}\nquant_formats: {accuracy_profile: {int4: 40}}\n");
    let selected = |builder: lz_engine::EngineBuilder| formats(&builder.open().unwrap());
    assert!(selected(Engine::builder().set("perfdb.enabled", Bool(false))).starts_with("mxfp4"));
    assert!(selected(Engine::builder().config(folder.file("layerzero.yaml"))).starts_with("int4"));
}

#[test]
fn the_manifest_of_shapes_is_written_where_the_setting_says() {
    let folder = Folder::new();
    for name in ["one.json", "two.json"] {
        let path = Text(folder.file(name).display().to_string());
        let builder = Engine::builder().operations([attend()]).set("perfdb.enabled", Bool(false));
        let engine = builder.set("jit.manifest_path", path).open().unwrap();
        assert!(manifest_after_three_days(&engine).starts_with("1 "));
        assert!(folder.file(name).exists());
    }
}

#[test]
fn changing_a_setting_changes_behavior() {
    for (key, value, observe) in probes() {
        let (folder, other) = (Folder::new(), Folder::new());
        let open = |folder: &Folder, change: Option<SettingInput>| {
            let path = folder.database().display().to_string();
            let manifest = folder.file("manifest.json").display().to_string();
            let mut builder =
                Engine::builder().operations([attend()]).clock(clock()).set("perfdb.path", Text(path));
            builder = builder.set("jit.manifest_path", Text(manifest));
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
    let elsewhere = ELSEWHERE.iter().map(|one| one.0);
    let covered: BTreeSet<&str> = probed.iter().map(|one| one.0).chain(elsewhere).collect();
    let every: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    assert_eq!(covered, every);
    assert_eq!(probed.len() + ELSEWHERE.len(), every.len(), "each is listed once");
}
