//! Blocks of operations: kernels that are selected jointly cost no more than those that are selected one by one.

use std::sync::OnceLock;

use crate::engine_support::{Does, Shape, attend, spec};
use lz_core::device::Platform;
use lz_core::plan::TransformKind;
use lz_core::{Context, DType, KernelEntry, KernelSpec, OperationInfo, ReasonCode, dynamic};
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::planner::Step;
use lz_engine::policy::{Lock, Pattern, Policy, Provenance};
use proptest::collection::vec as vec_of;
use proptest::prelude::*;
use proptest::sample::select;

const NORM: &str = r#"
operation: demo.norm
version: 1
summary: Something without a layout.
doc: "output = x"
axes:
  rows: { role: batch, select: { bucket: [16] }, fuzz: 1..9 }
types:
  T: [f32, f16, bf16]
inputs:
  x: { shape: [rows], dtype: T, doc: "Rows." }
outputs:
  output: { shape: [rows], dtype: T }
semantics: { nan: propagate }
equivalence: { exact: true }
workloads:
  small: { rows: 4, T: f32 }
"#;

fn norm() -> &'static OperationInfo {
    static OPERATION: OnceLock<&'static OperationInfo> = OnceLock::new();
    OPERATION.get_or_init(|| {
        dynamic::read_operation("demo/norm.yaml", NORM).unwrap_or_else(|error| panic!("{error}"))
    })
}

fn attention() -> Step {
    Step::new(attend(), Shape::default().context())
}

fn normalized() -> Step {
    let mut context = Context::of(&norm().fields);
    for field in norm().fields.iter() {
        let raw = match field.name.as_ref() {
            "rows" => 8,
            "T" => DType::BF16 as u64,
            _ => continue,
        };
        assert!(context.replace(field.store, raw));
    }
    Step::new(norm(), context)
}

fn engine(specs: impl IntoIterator<Item = KernelSpec>) -> Engine {
    let engine = Engine::new();
    let entries = specs.into_iter().map(|spec| {
        let operation = if spec.operation == "demo.norm" { norm() } else { attend() };
        KernelEntry::new(spec, Does(Box::new(|| Ok(())))).of(operation)
    });
    engine.register(entries).unwrap_or_else(|error| panic!("{error}"));
    engine
}

/// An attention kernel that supports one layout.
fn works_in(id: &str, layout: &str, priority: u8, cost: u32) -> KernelSpec {
    let mut kernel = spec(id).priority(priority);
    kernel.layouts = vec![layout.to_owned()];
    kernel.adapts = vec![TransformKind::Layout];
    kernel.transform_cost = cost;
    kernel
}

fn norm_kernel(id: &str) -> KernelSpec {
    KernelSpec::new(id, "demo.norm", id.split('.').next().unwrap(), "1", Platform::Cpu)
}

#[test]
fn output_layout_of_one_step_saves_a_conversion() {
    // Alone `a` wins by two points. In a row of three, `b` converts only once at each end.
    let mut a = works_in("a.attend", "BSHD", 30, 5);
    a.produces_layout = Some("BHSD".to_owned());
    let b = works_in("b.attend", "BHSD", 33, 5);
    let engine = engine([a, b]);
    assert_eq!(engine.which(attend(), &Shape::default().context()).unwrap().kernel, "a.attend");
    let plan = engine.plan_block(&[attention(), attention(), attention()]).unwrap();
    assert!(plan.saves() > 0.0, "{plan}");
    insta::assert_snapshot!(plan);
    let kernels: Vec<&str> = plan.joint.steps.iter().map(|step| step.kernel.as_str()).collect();
    assert_eq!(kernels, ["a.attend", "b.attend", "b.attend"]);
    let json = serde_json::to_value(&plan).expect("it is data");
    assert_eq!(json["joint"]["steps"][0]["kernel"], "a.attend");
}

#[test]
fn block_of_one_equals_single_selection() {
    let engine = engine([works_in("a.attend", "BSHD", 30, 5), works_in("b.attend", "BHSD", 33, 1)]);
    let plan = engine.plan_block(&[attention()]).unwrap();
    let alone = engine.which(attend(), &Shape::default().context()).unwrap();
    assert_eq!(plan.joint.steps[0].kernel, alone.kernel);
    assert_eq!(plan.joint.total, plan.greedy.total - plan.saves());
    assert!(engine.plan_block(&[]).unwrap().joint.steps.is_empty());
}

#[test]
fn fused_kernels_are_longer_edges() {
    let mut fused = spec("fused.attend_norm").priority(20);
    fused.fuses = vec!["demo.norm".to_owned()];
    let engine = engine([spec("a.attend").priority(25), fused, norm_kernel("n.norm")]);
    let plan = engine.plan_block(&[normalized(), attention(), normalized()]).unwrap();
    let steps: Vec<(&str, usize)> =
        plan.joint.steps.iter().map(|step| (step.kernel.as_str(), step.operations.len())).collect();
    assert_eq!(steps, [("fused.attend_norm", 2), ("n.norm", 1)], "{plan}");
    assert_eq!(plan.joint.total, 5.0 - 10.0);
    assert_eq!(plan.differences.len(), 2);
    assert!(plan.differences[1].why.contains("does demo.norm and demo.attend in one"), "{plan}");
    // A lock on the neighbor prevents fusing it.
    let lock = Lock {
        operation: Pattern::new("demo.norm"),
        kernel: "n.norm".to_owned(),
        condition: None,
        source: Provenance::new("test"),
    };
    engine.set_policy(Policy { locks: vec![lock], ..Policy::default() });
    let plan = engine.plan_block(&[attention(), normalized()]).unwrap();
    assert_eq!(plan.joint.steps.len(), 2, "{plan}");
}

#[test]
fn other_dtypes_are_used_only_if_allowed() {
    let half = spec("half.attend").priority(60).dtype("T", &[DType::F16]);
    let mut half = half;
    half.adapts = vec![TransformKind::Dtype];
    half.transform_cost = 3;
    let engine = engine([half, spec("plain.attend").priority(10)]);
    let plan = engine.plan_block(&[attention(), attention()]).unwrap();
    assert!(plan.joint.steps.iter().all(|step| step.kernel == "plain.attend"), "{plan}");
    let either = || attention().or_in(&[DType::F16]);
    let plan = engine.plan_block(&[either(), either()]).unwrap();
    assert!(plan.joint.steps.iter().all(|step| step.kernel == "half.attend"), "{plan}");
    let conversions = plan.joint.steps.iter().filter(|step| step.conversion.is_some()).count();
    assert_eq!(conversions, 1, "in at the beginning: {plan}");
    assert!(plan.joint.last.is_some(), "and back at the end: {plan}");
}

#[test]
fn strict_blocks_do_not_convert_inputs() {
    let engine = engine([works_in("a.attend", "BSHD", 10, 1), works_in("b.attend", "BHSD", 50, 1)]);
    let _strict = mode::scope(ModeOverride::NONE.set(ModeFlag::Strict, true));
    let plan = engine.plan_block(&[attention(), attention()]).unwrap();
    assert!(plan.joint.steps.iter().all(|step| step.kernel == "a.attend"), "{plan}");
}

#[test]
fn step_without_a_kernel_is_an_error() {
    let engine = engine([spec("a.attend").limit("seq > 1000", ReasonCode::AxisLimit), norm_kernel("n.norm")]);
    let error = engine.plan_block(&[normalized(), attention()]).unwrap_err();
    assert!(error.has(ReasonCode::AxisLimit) && error.to_string().starts_with("demo.attend"), "{error}");
}

fn drawn() -> impl Strategy<Value = KernelSpec> {
    let layouts = select(vec![vec![], vec!["BSHD"], vec!["BHSD"], vec!["BSHD", "BHSD"]]);
    let makes = select(vec![None, Some("BSHD"), Some("BHSD")]);
    let fuses = select(vec![
        vec![],
        vec![],
        vec!["demo.norm"],
        vec!["demo.attend"],
        vec!["demo.norm", "demo.attend"],
    ]);
    let is_norm = prop::bool::weighted(0.4);
    (0u8..20, layouts, makes, 0u32..8, any::<bool>(), fuses, is_norm).prop_map(
        |(priority, layouts, makes, cost, adapts, fuses, is_norm)| {
            let mut kernel = if is_norm { norm_kernel("some.norm") } else { spec("some.attend") };
            kernel.priority = priority;
            kernel.fuses = fuses.into_iter().map(str::to_owned).collect();
            kernel.transform_cost = cost;
            if !is_norm {
                kernel.layouts = layouts.into_iter().map(str::to_owned).collect();
                kernel.produces_layout = makes.map(str::to_owned);
            }
            if adapts {
                kernel.adapts = vec![TransformKind::Layout];
            }
            kernel
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// For any kernels: a plan covers every operation once, in order, its costs add up, it costs no more than selecting step by step, and
    /// it is independent of the registration order.
    #[test]
    fn joint_selection_is_never_worse(
        kernels in vec_of(drawn(), 0..7),
        steps in vec_of(any::<bool>(), 1..6),
    ) {
        let always = [spec("base.attend"), norm_kernel("base.norm")];
        let kernels: Vec<KernelSpec> = kernels.into_iter().enumerate().map(|(number, mut kernel)| {
            kernel.id = format!("{}.{number}", kernel.id);
            kernel
        }).chain(always).collect();
        let block: Vec<Step> =
            steps.iter().map(|attends| if *attends { attention() } else { normalized() }).collect();
        let plan = engine(kernels.clone()).plan_block(&block).expect("there are kernels for both");
        let again = engine(kernels.into_iter().rev()).plan_block(&block).expect("as before");
        prop_assert_eq!(&plan, &again);
        prop_assert!(plan.joint.total <= plan.greedy.total, "{}", plan);
        for choice in [&plan.joint, &plan.greedy] {
            let mut next = 0;
            let mut sum = choice.last.as_ref().map_or(0.0, |one| one.cost);
            for step in &choice.steps {
                prop_assert_eq!(step.first, next);
                next += step.operations.len();
                sum += step.cost + step.conversion.as_ref().map_or(0.0, |one| one.cost);
            }
            prop_assert_eq!(next, block.len());
            prop_assert!((sum - choice.total).abs() < 1e-9, "{}", plan);
        }
        prop_assert!(plan.greedy.steps.iter().all(|step| step.operations.len() == 1));
    }
}
