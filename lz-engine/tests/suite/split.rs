//! Calls that are too large for every kernel are split: the same values as a whole call, only if that is sound.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use lz_core::device::Platform;
use lz_core::expr::Value;
use lz_core::{
    Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, ReasonCode, Run, Tensor,
    TensorView,
};
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::{Lock, Pattern, Policy, Provenance, WithSource};
use lz_engine::{Engine, dynamic};
use lz_test_support::operations;
use proptest::prelude::*;

const SCHEMA: &str = r#"
operation: demo.scale
version: 1
summary: Rows times a factor and a broadcast mask, and the rows themselves are counted up.
doc: "output = x * weight * mask"
axes:
  batch: { role: batch,   select: { bucket: [1, 16] }, fuzz: 1..9 }
  width: { role: feature, select: exact,               fuzz: [1, 2] }
types:
  T: [f32]
inputs:
  x:      { shape: [batch, width], dtype: T, doc: "Rows." }
  weight: { shape: [width], dtype: T, doc: "Factors." }
  mask:   { shape: [batch, width], dtype: T, optional: true, broadcast: true, doc: "Factors, row by row or for all." }
  seen:   { shape: [batch], dtype: i32, access: read_write, doc: "How often each row was seen." }
params:
  factor: { type: f32, default: 2, doc: "A factor." }
outputs:
  output: { shape: [batch, width], dtype: T }
semantics: { nan: propagate }
equivalence: { exact: true }
workloads:
  small: { batch: 4, width: 2, T: f32 }
"#;

fn scale() -> &'static OperationInfo {
    static OPERATION: OnceLock<&'static OperationInfo> = OnceLock::new();
    OPERATION.get_or_init(|| {
        dynamic::read_operation("demo/scale.yaml", SCHEMA).unwrap_or_else(|error| panic!("{error}"))
    })
}

struct Scales(Arc<AtomicUsize>);

impl Kernel for Scales {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        _: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let [
            Arg::Tensor(x),
            Arg::Tensor(weight),
            mask,
            Arg::TensorMut(seen),
            Arg::Value(Value::Float(factor)),
        ] = args
        else {
            return Err(KernelError::failed("other arguments than the schema's"));
        };
        let [OutArg::Tensor(output)] = outputs else { return Err(KernelError::failed("no output")) };
        let mask = mask.tensor();
        for row in 0..x.shape()[0] {
            for column in 0..x.shape()[1] {
                let masked = mask.map_or(1.0, |mask| match mask.rank() {
                    1 => mask.at(&[column]),
                    _ => mask.at(&[if mask.shape()[0] == 1 { 0 } else { row }, column]),
                });
                output.set(&[row, column], x.at(&[row, column]) * weight.at(&[column]) * masked * *factor);
            }
            let before = seen.as_view().int_at(&[row]);
            seen.set_int(&[row], before + 1);
        }
        Ok(())
    }
}

/// A kernel whose workspace grows with the batch.
fn greedy() -> KernelSpec {
    let mut spec = KernelSpec::new("greedy.scale", "demo.scale", "greedy", "1", Platform::Cpu).priority(50);
    spec.workspace = Some("batch * 1024".to_owned());
    spec
}

fn engine(specs: Vec<KernelSpec>, headroom: u64) -> (Engine, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let engine = Engine::new();
    let entry = |spec| KernelEntry::new(spec, Scales(Arc::clone(&runs))).of(scale());
    engine.register(specs.into_iter().map(entry)).unwrap_or_else(|error| panic!("{error}"));
    engine
        .set_policy(Policy { memory_headroom: WithSource::new(Some(headroom), "test"), ..Policy::default() });
    (engine, runs)
}

/// Calls the operation; returns the output and how often each row was processed.
fn call(engine: &Engine, batch: i64, mask: Option<&[i64]>) -> Result<(Vec<f32>, Vec<i32>), lz_core::Error> {
    let numbers: Vec<f32> = (0..batch * 3).map(|number| number as f32).collect();
    let masks: Vec<f32> = (0..batch * 3).map(|number| (number % 7) as f32).collect();
    let weight = [1.0f32, 10.0, 100.0];
    let mut seen = vec![0i32; batch as usize];
    let mut output = Tensor::zeros(&[batch, 3], DType::F32).unwrap();
    {
        let view = |data, shape: &[i64]| Arg::Tensor(TensorView::from_slice(data, shape).unwrap());
        let mask_elements = mask.map_or(0, |shape| shape.iter().product::<i64>() as usize);
        let mut args = [
            view(&numbers, &[batch, 3]),
            view(&weight, &[3]),
            mask.map_or(Arg::Absent, |shape| view(&masks[..mask_elements], shape)),
            Arg::TensorMut(lz_core::TensorMut::from_slice(&mut seen, &[batch]).unwrap()),
            Arg::Absent,
        ];
        dynamic::call_into(engine, scale(), &mut args, &mut [OutArg::Tensor(output.view_mut())])?;
    }
    let values = output.view().as_slice::<f32>().unwrap().to_vec();
    Ok((values, seen))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// For any batch, memory and mask: parts give the same values as the whole, and each row is processed once.
    #[test]
    fn split_call_equals_the_whole_call(batch in 1i64..50, rows in 1u64..20, mask in 0usize..4) {
        let shapes: [Option<Vec<i64>>; 4] = [None, Some(vec![3]), Some(vec![1, 3]), Some(vec![batch, 3])];
        let mask = shapes[mask].as_deref();
        let (whole, _) = engine(vec![greedy()], u64::MAX);
        let expected = call(&whole, batch, mask).expect("there is memory enough");
        let (split, runs) = engine(vec![greedy()], rows * 1024);
        let found = call(&split, batch, mask).expect("parts fit");
        prop_assert_eq!(&found, &expected);
        prop_assert!(found.1.iter().all(|seen| *seen == 1));
        let fits = batch as u64 <= rows;
        prop_assert_eq!(split.split_calls() > 0, !fits);
        prop_assert_eq!(runs.load(Ordering::Relaxed) > 1, !fits);
        prop_assert_eq!(whole.split_calls(), 0);
    }
}

fn context(batch: u64) -> lz_core::Context {
    let mut context = lz_core::Context::of(&scale().fields);
    for field in scale().fields.iter() {
        let raw = match field.name.as_ref() {
            "batch" => batch,
            "width" => 3,
            "T" => DType::F32 as u64,
            "factor" => 2.0f64.to_bits(),
            _ => 0,
        };
        assert!(context.replace(field.store, raw));
    }
    context
}

#[test]
fn eligible_kernel_is_preferred_to_splitting() {
    let slow = KernelSpec::new("slow.scale", "demo.scale", "slow", "1", Platform::Cpu);
    let (engine, runs) = engine(vec![greedy(), slow], 4 * 1024);
    call(&engine, 40, None).unwrap();
    assert_eq!((engine.split_calls(), runs.load(Ordering::Relaxed)), (0, 1));
    let plan = engine.which(scale(), &context(40)).unwrap();
    assert_eq!((plan.kernel.as_str(), plan.split), ("slow.scale", None));
}

#[test]
fn a_split_is_planned_and_explained() {
    let (engine, _) = engine(vec![greedy()], 4 * 1024);
    let plan = engine.which(scale(), &context(40)).unwrap();
    let split = plan.split.expect("it must be cut");
    assert_eq!(split.to_string(), "batch 40 is split into 14 parts of up to 3");
    assert_eq!((plan.kernel.as_str(), plan.workspace_bytes), ("greedy.scale", 3 * 1024));
    let explanation = engine.explain(scale(), &context(40));
    let candidate = explanation.candidate("greedy.scale").unwrap();
    let codes: Vec<&str> = candidate.reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(codes, ["MEMORY_HEADROOM_EXCEEDED", "BATCH_SPLIT_REQUIRED"]);
    assert!(candidate.chosen);
    assert!(
        explanation.to_string().contains("; batch 40 is split into 14 parts of up to 3"),
        "{explanation}"
    );
    assert_eq!(engine.which(scale(), &context(4)).unwrap().split, None);
}

#[test]
fn launch_grid_limit_causes_a_split() {
    let gpu = lz_device::preset(lz_device::PRESETS[0]).unwrap();
    let mut spec = KernelSpec::new("gpu.scale", "demo.scale", "gpu", "1", gpu.platform());
    spec.grid = Some(["1".to_owned(), "batch".to_owned(), "1".to_owned()]);
    let (engine, _) = engine(vec![spec.clone()], u64::MAX);
    let there = engine.with_device(gpu);
    let plan = there.which(scale(), &context(100_000)).unwrap();
    assert_eq!(plan.split.unwrap().part, 50_000);
    assert_eq!(there.which(scale(), &context(65_535)).unwrap().split, None);
}

#[test]
fn other_reasons_do_not_cause_a_split() {
    let limited = greedy().limit("width == 8", ReasonCode::AxisLimit);
    let (engine, runs) = engine(vec![limited], 4 * 1024);
    let error = call(&engine, 40, None).unwrap_err();
    assert!(error.has(ReasonCode::AxisLimit), "{error}");
    assert_eq!((engine.split_calls(), runs.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn strict_calls_and_single_items_are_not_split() {
    let (engine, _) = engine(vec![greedy()], 1023);
    assert!(call(&engine, 40, None).unwrap_err().has(ReasonCode::MemoryHeadroomExceeded));
    let (engine, _) = self::engine(vec![greedy()], 4 * 1024);
    let _strict = mode::scope(ModeOverride::NONE.set(ModeFlag::Strict, true));
    assert!(call(&engine, 40, None).unwrap_err().has(ReasonCode::MemoryHeadroomExceeded));
}

#[test]
fn two_items_are_split_and_locked_calls_are_not() {
    let (engine, runs) = engine(vec![greedy()], 1024);
    call(&engine, 2, None).unwrap();
    assert_eq!((engine.split_calls(), runs.load(Ordering::Relaxed)), (1, 2));
    engine.set_policy(Policy {
        memory_headroom: WithSource::new(Some(1024), "test"),
        locks: vec![Lock {
            operation: Pattern::new("demo.scale"),
            condition: None,
            kernel: "greedy.scale".to_owned(),
            source: Provenance::new("test"),
        }],
        ..Policy::default()
    });
    assert!(matches!(call(&engine, 2, None).unwrap_err(), lz_core::Error::Locked { .. }));
}

/// An operation of the schema above with these changes of its text.
fn changed(name: &str, changes: &[(&str, &str)]) -> &'static OperationInfo {
    let mut text = SCHEMA.replace("demo.scale", name);
    for (old, new) in changes {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    let path = format!("{}.yaml", name.replace('.', "/"));
    dynamic::read_operation(&path, &text).unwrap_or_else(|error| panic!("{error}"))
}

/// Parts of an output without a leading batch would have to be combined.
#[test]
fn every_output_has_the_axis_first() {
    let output = "output: { shape: [batch, width], dtype: T }";
    let axis = |name, shape: &str| {
        lz_engine::split::batch_axis(changed(name, &[(output, &output.replace("[batch, width]", shape))]))
    };
    assert_eq!(axis("demo.scale_rows", "[batch, width]"), Some("batch"));
    assert_eq!(axis("demo.scale_columns", "[width, batch]"), None);
    assert_eq!(axis("demo.scale_sum", "[width]"), None);
    assert_eq!(axis("demo.scale_square", "[batch, batch]"), None);
}

/// A score expression may read the index in the batch, which differs in a part.
#[test]
fn calls_with_a_score_expression_are_not_split() {
    let score = "  score_mod: { shape: [bytes], dtype: u8, optional: true, contiguous: all, device: host, \
                 values: { score_mod: 0 }, doc: \"An expression.\" }\nparams:";
    let axes = "axes:\n  bytes: { role: count, select: ignored, fuzz: [5] }";
    let operation = changed("demo.scale_score", &[("params:", score), ("axes:", axes)]);
    assert_eq!(lz_engine::split::batch_axis(operation), Some("batch"));
    let gpu = lz_device::preset("h100").unwrap();
    let mut spec = KernelSpec::new("gpu.scale", "demo.scale_score", "gpu", "1", gpu.platform());
    spec.grid = Some(["1".to_owned(), "batch".to_owned(), "1".to_owned()]);
    let engine = Engine::new();
    let runs = Arc::default();
    engine.register([KernelEntry::new(spec, Scales(runs)).of(operation)]).unwrap();
    let engine = engine.with_device(gpu);
    let plan = |given: u64| {
        let mut context = lz_core::Context::of(&operation.fields);
        for field in operation.fields.iter() {
            let raw = match field.name.as_ref() {
                "batch" => 100_000,
                "width" => 3,
                "T" => DType::F32 as u64,
                "given(score_mod)" => given,
                "given(mask)" => 1 - given,
                "factor" => 2.0f64.to_bits(),
                _ => 0,
            };
            assert!(context.replace(field.store, raw));
        }
        engine.which(operation, &context).map(|plan| plan.split.map(|split| split.part))
    };
    assert_eq!(plan(0).unwrap(), Some(50_000));
    assert!(plan(1).unwrap_err().has(ReasonCode::CudaGridDimExceeded));
}

/// Which operations of the catalog can be split at all: review the list before accepting a change of it.
#[test]
fn splittable_axes_of_all_operations() {
    let list: Vec<String> = operations()
        .iter()
        .filter_map(|info| Some(format!("{}: {}", info.name, lz_engine::split::batch_axis(info)?)))
        .collect();
    insta::assert_snapshot!(list.join("\n"));
}
