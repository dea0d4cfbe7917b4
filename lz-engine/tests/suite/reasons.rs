//! Reasons that depend on how an operation uses its dtypes, and on what flows between operations.

use std::sync::OnceLock;

use crate::engine_support::{Does, Shape, attend, engine, run, spec};
use lz_core::context::FRESH_OUTPUT;
use lz_core::device::Platform;
use lz_core::plan::TransformKind;
use lz_core::{
    Arg, Context, DType, Error, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg,
    ReasonCode, Run, Tensor, dynamic,
};
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::planner::BlockCall;
use lz_engine::policy::{Policy, WithSource};

/// Caches with their own dtype, and outputs with another.
const CACHED: &str = r#"
operation: demo.cached
version: 1
summary: Something with a cache.
doc: "output = q"
axes:
  rows: { role: batch, select: exact, fuzz: 1..4 }
types:
  T: [f32, f16]
  C: [f32, f16, bf16]
inputs:
  q:       { shape: [rows], dtype: T, doc: "Queries." }
  k_cache: { shape: [rows], dtype: C, doc: "Keys." }
params:
  width: { type: enum, values: [wide, narrow], default: wide, doc: "How wide results are." }
outputs:
  output: { shape: [rows], dtype: { by: width, wide: f32, narrow: f16 } }
semantics: { nan: propagate }
equivalence:
  close: { f32: [1e-5, 1e-5], f16: [1e-3, 1e-3] }
workloads:
  small: { rows: 4, T: f32, C: f32 }
"#;

/// Text, which cannot flow into an operation on tensors.
const SPELL: &str = r#"
operation: demo.spell
version: 1
summary: Numbers as words.
doc: "text of x"
axes:
  rows: { role: batch, select: exact, fuzz: 1..4 }
types:
  T: [f32]
inputs:
  x: { shape: [rows], dtype: T, doc: "Numbers." }
outputs:
  words: { kind: text, shape: [rows] }
semantics: { nan: propagate }
equivalence: { exact: true }
workloads:
  small: { rows: 2, T: f32 }
"#;

/// A mask with its own dtype, an optional mask of blocks, and random numbers that the schema defines.
const MASKED: &str = r#"
operation: demo.masked
version: 1
summary: Something with masks.
doc: "output = x"
axes:
  rows: { role: batch, select: exact, fuzz: 1..4 }
types:
  T: [f32]
  M: [bool, f32]
inputs:
  x:          { shape: [rows], dtype: T, doc: "Rows." }
  mask:       { shape: [rows], dtype: M, optional: true, doc: "Mask." }
  block_mask: { shape: [rows], dtype: bool, optional: true, doc: "Mask of blocks." }
outputs:
  output: { shape: [rows], dtype: T }
semantics: { nan: propagate, random: philox4x32_10 }
equivalence: { exact: true }
workloads:
  small: { rows: 2, T: f32, M: f32 }
"#;

fn operation(
    path: &str,
    text: &str,
    kept: &'static OnceLock<&'static OperationInfo>,
) -> &'static OperationInfo {
    kept.get_or_init(|| dynamic::read_operation(path, text).unwrap_or_else(|error| panic!("{error}")))
}

fn cached() -> &'static OperationInfo {
    static KEPT: OnceLock<&'static OperationInfo> = OnceLock::new();
    operation("demo/cached.yaml", CACHED, &KEPT)
}

fn spell() -> &'static OperationInfo {
    static KEPT: OnceLock<&'static OperationInfo> = OnceLock::new();
    operation("demo/spell.yaml", SPELL, &KEPT)
}

fn masked() -> &'static OperationInfo {
    static KEPT: OnceLock<&'static OperationInfo> = OnceLock::new();
    operation("demo/masked.yaml", MASKED, &KEPT)
}

fn codes(error: &Error) -> Vec<ReasonCode> {
    error.reasons().iter().map(|reason| reason.code).collect()
}

fn kernel(operation: &'static OperationInfo, change: impl Fn(KernelSpec) -> KernelSpec) -> Engine {
    let spec = change(KernelSpec::new("some.x", &operation.name, "some", "1", Platform::Cpu));
    let engine = Engine::new();
    engine.register([KernelEntry::new(spec, Does(Box::new(|| Ok(())))).of(operation)]).unwrap();
    engine
}

fn context(cache: DType, narrow: bool) -> Context {
    let mut context = Context::of(&cached().fields);
    for field in cached().fields.iter() {
        let raw = match field.name.as_ref() {
            "rows" => 4,
            "T" => DType::F32 as u64,
            "C" => cache as u64,
            "width" => u64::from(narrow),
            _ => continue,
        };
        assert!(context.replace(field.store, raw));
    }
    context
}

#[test]
fn dtypes_of_caches_and_outputs_have_their_own_reasons() {
    let reason = |variable: &str, context: &Context| {
        let engine = kernel(cached(), |spec| spec.dtype(variable, &[DType::F32]));
        let error = engine.which(cached(), context).unwrap_err();
        let [reason] = error.reasons()[..] else { panic!("{error}") };
        (reason.code, reason.argument.clone(), reason.required.clone(), reason.found.clone())
    };
    let has_reason = |code, variable: &str, found: &str| {
        (code, Some(variable.to_owned()), Some("f32".to_owned()), Some(found.to_owned()))
    };
    assert_eq!(
        reason("C", &context(DType::BF16, false)),
        has_reason(ReasonCode::KvCacheDtypeMismatch, "C", "bf16")
    );
    assert_eq!(
        reason("width", &context(DType::F32, true)),
        has_reason(ReasonCode::OutputDtypeUnsupported, "width", "narrow")
    );
    let fits = kernel(cached(), |spec| spec.dtype("C", &[DType::F32]).dtype("width", &[DType::F32]));
    assert_eq!(fits.which(cached(), &context(DType::F32, false)).unwrap().kernel, "some.x");
}

#[test]
fn non_tensor_cannot_flow_into_the_next_operation() {
    struct Spells;
    impl Kernel for Spells {
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }

        fn run(
            &self,
            _: &mut [Arg<'_>],
            outputs: &mut [OutArg<'_>],
            _: &mut Run<'_>,
        ) -> Result<(), KernelError> {
            let [OutArg::Text(words)] = outputs else { return Err(KernelError::failed("text")) };
            **words = Some(vec!["one".to_owned(), "two".to_owned()]);
            Ok(())
        }
    }
    let engine = Engine::new();
    let spec = KernelSpec::new("some.spell", "demo.spell", "some", "1", Platform::Cpu);
    engine.register([KernelEntry::new(spec, Spells).of(spell())]).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
    let mut block = [
        BlockCall::new(spell(), vec![Arg::Tensor(x.view())]),
        BlockCall::new(spell(), vec![Arg::Tensor(x.view())]),
    ];
    let error = engine.run_block(&mut block).unwrap_err();
    assert!(error.has(ReasonCode::TransformUnavailable), "{error}");
    assert!(matches!(&error, Error::Validation { operation, .. } if operation == "demo.spell"), "{error}");
    assert!(engine.run_block(&mut block[..1]).is_ok(), "by itself it is a call like any other");
}

#[test]
fn undeclared_graph_safety_follows_the_setting() {
    let mut unsafe_one = spec("unsafe.x").priority(90);
    unsafe_one.cuda_graph_unsafe = true;
    let engine = engine([unsafe_one, spec("silent.x").priority(50)]);
    let _capturing = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
    assert!(matches!(run(&engine, &Shape::default()), Err(Error::CudaGraphUnsafe { .. })));
    let policy = Policy { default_graph_safe: WithSource::new(true, "test"), ..Policy::default() };
    engine.set_policy(policy.clone());
    assert_eq!(
        run(&engine, &Shape::default()).unwrap(),
        "silent.x",
        "the other one says that it is not safe"
    );
    engine.set_policy(Policy { graph_strict_mode: WithSource::new(true, "test"), ..policy });
    let error = run(&engine, &Shape::default()).unwrap_err();
    assert!(error.to_string().contains("trial capture"), "what is assumed has still to be tried: {error}");
    engine.mark_captured("silent.x", attend(), &Shape::default().context());
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "silent.x");
}

#[test]
fn output_copy_costs_points_and_is_shown() {
    let mut copies = spec("copies.x").priority(50);
    copies.writes_into_output = false;
    let engine = engine([copies, spec("writes.x").priority(50)]);
    let output = attend().field("strides(output)").unwrap().store;
    let with = |class: u64| {
        let mut context = Shape::default().context();
        assert!(context.replace(output, class));
        context
    };
    let given = FRESH_OUTPUT & 0b111 | 6 << 3;
    for _ in 0..2 {
        // Ties are broken by id. An allocated output needs no copy; a given output costs a copy.
        assert_eq!(engine.decide(attend(), &with(FRESH_OUTPUT)).unwrap(), "copies.x");
        assert_eq!(engine.decide(attend(), &with(given)).unwrap(), "writes.x");
    }
    let explanation = engine.explain(attend(), &with(given));
    let copying = explanation.candidate("copies.x").unwrap();
    assert!(copying.transforms.contains(TransformKind::Output), "{explanation}");
    assert_eq!((copying.score.transform, copying.reasons.len()), (-1.0, 0));
    assert!(explanation.to_string().contains("output"), "{explanation}");
    let fresh = engine.explain(attend(), &with(FRESH_OUTPUT));
    assert!(fresh.candidate("copies.x").unwrap().transforms.is_empty());
    // A copy changes no value, so strict mode allows it.
    let _strict = mode::scope(ModeOverride::NONE.set(ModeFlag::Strict, true));
    assert!(engine.explain(attend(), &with(given)).candidate("copies.x").unwrap().reasons.is_empty());
}

/// A call of the operation with masks.
fn masked_call(given: &str) -> Context {
    let mut context = Context::of(&masked().fields);
    for field in masked().fields.iter() {
        let raw = match field.name.as_ref() {
            "rows" => 2,
            "T" => DType::F32 as u64,
            "M" if given == "mask" => DType::F32 as u64,
            name if name == format!("given({given})") => 1,
            _ => continue,
        };
        assert!(context.replace(field.store, raw));
    }
    context
}

#[test]
fn a_mask_has_its_own_reasons() {
    let engine = kernel(masked(), |spec| spec.dtype("M", &[DType::Bool]));
    assert_eq!(
        codes(&engine.which(masked(), &masked_call("mask")).unwrap_err()),
        [ReasonCode::AttnMaskInvalid]
    );
    let text = r#"{"schema_version": "1.0", "backend": "some", "backend_version": "1", "platform": "cpu", "ops":
        {"demo.masked": [{"kernel_id": "some.x", "dtypes": ["f32"], "requires_layouts": ["any"], "supports_attn_mask": true, "supported_attn_mask_types": ["bool"],
        "limits": [{"check": "rows <= 1", "code": "PAGE_SIZE_UNSUPPORTED"}, {"check": "rows == 1", "code": "SEMANTICS_DIFFER"}]}]}}"#;
    let catalog = lz_core::descriptor::Catalog::new([masked().schema()]);
    let described =
        lz_core::descriptor::read("some.json", text, &catalog).unwrap_or_else(|error| panic!("{error}"));
    let engine = Engine::new();
    let entries = described
        .kernels
        .into_iter()
        .map(|spec| KernelEntry::new(spec, Does(Box::new(|| Ok(())))).of(masked()));
    engine.register(entries).unwrap();
    let found = codes(&engine.which(masked(), &masked_call("block_mask")).unwrap_err());
    // A descriptor may name any code for its limits.
    for code in [ReasonCode::MaskUnsupported, ReasonCode::PageSizeUnsupported, ReasonCode::SemanticsDiffer] {
        assert!(found.contains(&code), "{found:?}");
    }
}

#[test]
fn defined_random_numbers_are_required_in_deterministic_mode() {
    let engine = kernel(masked(), |spec| spec);
    let _deterministic = mode::scope(ModeOverride::NONE.set(ModeFlag::Deterministic, true));
    assert_eq!(
        codes(&engine.which(masked(), &masked_call("")).unwrap_err()),
        [ReasonCode::RandomnessDiffers]
    );
}

#[test]
fn a_device_without_compute_capability_lacks_it() {
    let mut needs = spec("rocm.x");
    needs.platform = Platform::Rocm;
    needs.device.min_sm = Some(80);
    let engine = engine([needs]).with_device(lz_device::preset("mi300x").unwrap());
    let error = engine.which(attend(), &Shape::default().context()).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::DeviceCapabilityUnsupported], "{error}");
}

#[test]
fn an_operation_without_kernels_has_a_reason() {
    let engine = Engine::new();
    engine.register_operations([attend()]).unwrap();
    let error = run(&engine, &Shape::default()).unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::NoKernel], "{error}");
}

#[test]
fn tuning_is_refused_during_a_capture() {
    let engine = engine([spec("a.x")]);
    let _capturing = mode::scope(ModeOverride::NONE.set(ModeFlag::Capturing, true));
    let options = lz_engine::tune::TuneOptions::default();
    let error = engine
        .tune(attend(), &Shape::default().context(), &options, &mut |_, _| Ok(()), &mut |_| {
            std::ops::ControlFlow::Continue(())
        })
        .unwrap_err();
    assert_eq!(codes(&error), [ReasonCode::SyncInCapture], "{error}");
}
