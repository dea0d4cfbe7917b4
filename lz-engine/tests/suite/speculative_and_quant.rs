//! Selections above a single kernel: pairs for speculative decoding, and quantization formats.

use crate::engine_support::{Shape, attend, engine, spec};
use lz_core::{Context, DType, Error, KernelSpec, OperationInfo, ReasonCode, dynamic};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;
use lz_engine::quant::{AccuracyWeighting, FormatCall, QuantConfig};
use lz_engine::speculative::{Algorithm, ModelCall, PairCache, SpeculativeConfig};

fn side(context: &Context) -> ModelCall<'_> {
    ModelCall { operation: attend(), context, pipeline_stages: 1 }
}

fn codes(error: &Error) -> Vec<ReasonCode> {
    error.reasons().iter().map(|reason| reason.code).collect()
}

fn with_strategies(id: &str, priority: u8, strategies: &[&str]) -> KernelSpec {
    let mut spec = spec(id).priority(priority);
    spec.kv_strategies = strategies.iter().map(|name| (*name).to_owned()).collect();
    spec
}

/// Drafts are short, targets long; each kernel accepts only one of them.
fn engine_with_kernels() -> Engine {
    let short = |spec: KernelSpec| spec.limit("seq <= 128", ReasonCode::AxisLimit);
    let long = |spec: KernelSpec| spec.limit("seq > 128", ReasonCode::AxisLimit);
    engine([
        short(with_strategies("draft.paged", 50, &["paged"])),
        short(with_strategies("draft.flat", 60, &["contiguous"])),
        long(with_strategies("target.paged", 90, &["paged", "virtual"])),
        long(with_strategies("target.flat", 40, &["contiguous"])),
    ])
}

fn calls() -> (Context, Context) {
    (Shape { seq: 64, ..Shape::default() }.context(), Shape { seq: 1000, ..Shape::default() }.context())
}

#[test]
fn shared_kv_cache_changes_the_best_pair() {
    let engine = engine_with_kernels();
    let (draft, target) = calls();
    let apart = SpeculativeConfig::default();
    let pair = engine.pair(&apart, side(&draft), side(&target)).unwrap();
    assert_eq!(
        (pair.draft.as_str(), pair.target.as_str(), pair.score),
        ("draft.flat", "target.paged", 150.0)
    );
    let shared = SpeculativeConfig { share_kv_cache: true, ..apart };
    let pair = engine.pair(&shared, side(&draft), side(&target)).unwrap();
    assert_eq!(
        (pair.draft.as_str(), pair.target.as_str(), pair.score),
        ("draft.paged", "target.paged", 140.0)
    );
}

#[test]
fn each_incompatibility_has_a_reason() {
    let engine = engine_with_kernels();
    let (draft, target) = calls();
    let refused = |config: SpeculativeConfig, stages: u32| {
        let target = ModelCall { pipeline_stages: stages, ..side(&target) };
        codes(&engine.pair(&config, side(&draft), target).unwrap_err())
    };
    let plain = SpeculativeConfig::default();
    assert_eq!(refused(plain, 2), [ReasonCode::SpecDecodePpIncompatible]);
    let wide = SpeculativeConfig { draft_tp_size: 2, ..plain };
    assert_eq!(refused(wide, 1), [ReasonCode::SpecDecodeDraftTpConstraint]);
    let eagle = SpeculativeConfig { algorithm: Algorithm::Eagle, ..plain };
    assert!(refused(eagle, 1).contains(&ReasonCode::SpecDecodeAlgorithmUnsupported));
    engine.unregister_backend("target");
    let mut flat = with_strategies("other.x", 50, &["unified"]);
    flat = flat.limit("seq > 128", ReasonCode::AxisLimit);
    engine.register([crate::engine_support::entry(flat)]).unwrap();
    let shared = SpeculativeConfig { share_kv_cache: true, ..plain };
    assert_eq!(refused(shared, 1), [ReasonCode::SpecDecodeKvIncompatible; 2]);
    let other = Shape { seq: 64, dtype: DType::F16, ..Shape::default() }.context();
    let error = engine.pair(&shared, side(&other), side(&target)).unwrap_err();
    assert!(error.has(ReasonCode::SpecDecodeKvIncompatible), "{error}");
}

#[test]
fn kernel_that_supports_the_algorithm_is_selected() {
    let mut knows = spec("eagle.x").priority(1);
    knows.speculative_algorithms = vec!["eagle".to_owned()];
    let engine = engine([spec("plain.x").priority(90), knows]);
    let (draft, target) = calls();
    let eagle = SpeculativeConfig { algorithm: Algorithm::Eagle, ..SpeculativeConfig::default() };
    let pair = engine.pair(&eagle, side(&draft), side(&target)).unwrap();
    assert_eq!((pair.draft.as_str(), pair.target.as_str()), ("eagle.x", "eagle.x"));
}

#[test]
fn cached_pairs_end_with_the_generation_and_are_checked_per_call() {
    let engine = engine_with_kernels();
    let cache = PairCache::default();
    let (draft, target) = calls();
    let config = SpeculativeConfig::default();
    let pair =
        |draft: &Context| cache.pair(&engine, &config, side(draft), side(&target)).map(|pair| pair.draft);
    assert_eq!(pair(&draft).unwrap(), "draft.flat");
    assert_eq!(pair(&draft).unwrap(), "draft.flat");
    engine.disable_backend("draft", lz_core::Reason::new(ReasonCode::BackendImportFailed));
    assert!(pair(&draft).is_err());
    engine.enable_backend("draft");
    assert_eq!(pair(&draft).unwrap(), "draft.flat");
}

#[test]
fn settings_and_batch_size_determine_speculation() {
    let engine = Engine::new();
    engine
        .configure([
            ("speculative_decoding.algorithm".to_owned(), SettingInput::Text("medusa".to_owned())),
            ("speculative_decoding.num_speculative_tokens".to_owned(), SettingInput::Int(8)),
        ])
        .unwrap();
    let config = SpeculativeConfig::of(&engine);
    assert_eq!((config.algorithm, config.max_draft_tp_size), (Algorithm::Medusa, 1));
    assert_eq!([1, 8, 16, 64, 1000].map(|batch| config.tokens_for(batch)), [8, 8, 4, 2, 1]);
    let fixed = SpeculativeConfig { adaptive: false, ..config };
    assert_eq!(fixed.tokens_for(1000), 8);
}

pub fn packed() -> &'static OperationInfo {
    static OPERATION: std::sync::OnceLock<&'static OperationInfo> = std::sync::OnceLock::new();
    OPERATION.get_or_init(|| {
        let text = r#"
operation: demo.packed
version: 1
summary: Something in a format.
doc: "output = x"
axes:
  n: { role: feature, select: exact, fuzz: [1, 2] }
types:
  T: [f32]
inputs:
  x: { shape: [n], dtype: T, doc: "In." }
params:
  format: { type: enum, values: [int4, mxfp4, nvfp4], default: int4, doc: "Format." }
outputs:
  output: { shape: [n], dtype: T }
semantics: { nan: propagate }
equivalence:
  exact: true
workloads:
  small: { n: 4, T: f32 }
"#;
        dynamic::read_operation("demo/packed.yaml", text).unwrap_or_else(|error| panic!("{error}"))
    })
}

pub fn in_format(case: u64) -> Context {
    let mut context = Context::of(&packed().fields);
    for field in packed().fields.iter() {
        let bits = match (field.name.as_ref(), &field.kind) {
            ("format", _) => case,
            (_, lz_core::context::FieldKind::DType) => DType::F32 as u64,
            _ => continue,
        };
        context.set(field.store, bits);
    }
    context
}

#[test]
fn formats_are_selected_by_weighted_accuracy_and_speed() {
    let kernel = |id: &str, priority: u8, formats: &[&str]| {
        let mut spec =
            KernelSpec::new(id, "demo.packed", "b", "1", lz_core::device::Platform::Cpu).priority(priority);
        spec.quant_formats = formats.iter().map(|name| (*name).to_owned()).collect();
        lz_core::KernelEntry::new(spec, crate::engine_support::Does(Box::new(|| Ok(())))).of(packed())
    };
    let engine = Engine::new();
    engine.register([kernel("b.int4", 50, &["int4"]), kernel("b.mxfp4", 80, &["mxfp4"])]).unwrap();
    let contexts = [in_format(2), in_format(0), in_format(1)];
    let calls: Vec<FormatCall<'_>> = ["nvfp4", "int4", "mxfp4"]
        .iter()
        .zip(&contexts)
        .map(|(format, context)| FormatCall { format, operation: packed(), context })
        .collect();
    let choose = |config: &QuantConfig, stored| engine.choose_format(config, stored, &calls);
    let weigh = |weighing| QuantConfig { weighing, ..QuantConfig::default() };
    assert_eq!(
        choose(&weigh(AccuracyWeighting::High), None).unwrap().format,
        "int4",
        "nvfp4 would be better, but nothing runs it"
    );
    assert_eq!(choose(&weigh(AccuracyWeighting::Performance), None).unwrap().format, "mxfp4");
    let own = QuantConfig { profile: vec![("mxfp4".to_owned(), 9)], ..weigh(AccuracyWeighting::High) };
    assert_eq!(choose(&own, None).unwrap().format, "mxfp4", "a model's own ranks come first");
    let strict = QuantConfig { max_drop_percent: 2.0, ..weigh(AccuracyWeighting::Performance) };
    assert_eq!(choose(&strict, None).unwrap().format, "int4");
    assert!(!choose(&strict, Some("int4")).unwrap().requantize);
    let error = choose(&strict, Some("mxfp4")).unwrap_err();
    for code in [
        ReasonCode::RequantizationRequired,
        ReasonCode::QuantAccuracyThresholdExceeded,
        ReasonCode::QuantFormatUnsupported,
    ] {
        assert!(error.has(code), "{code}: {error}");
    }
    let again = QuantConfig { requantization: true, ..strict.clone() };
    let choice = choose(&again, Some("mxfp4")).unwrap();
    assert_eq!((choice.format.as_str(), choice.requantize, choice.kernel.as_str()), ("int4", true, "b.int4"));
    let first_only = QuantConfig { allow_fallback: false, ..QuantConfig::default() };
    assert!(choose(&first_only, None).is_err());
}
