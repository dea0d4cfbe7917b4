//! Blocks of real operations: running them with a plan gives the same results as calling each operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lz_core::context::FieldKind;
use lz_core::expr::Value;
use lz_core::plan::TransformKind;
use lz_core::tensor::Indices;
use lz_core::{
    Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run, Tensor, TensorView,
};
use lz_engine::Engine;
use lz_engine::dynamic::{self, Output};
use lz_engine::planner::BlockCall;
use lz_engine::policy::layer::SettingInput;
use lz_ops::{
    ACTIVATION_SILU, ATTENTION_GQA_PREFILL, MLP_LINEAR, MLP_LINEAR_FP4, MLP_LINEAR_FP8, MLP_LINEAR_INT8,
    MLP_LINEAR_WEIGHT_ONLY, MOE_EXPERTS, MOE_EXPERTS_QUANTIZED, NORM_RMS, QUANTIZE,
};

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

/// Wraps a reference kernel under another spec; it fails on request.
struct WrappedKernel(Arc<dyn Kernel>, Arc<AtomicBool>);

impl Kernel for WrappedKernel {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        if self.1.load(Ordering::Relaxed) {
            return Err(KernelError::failed("failing on request"));
        }
        self.0.run(args, outputs, run)
    }
}

/// The operation's reference kernel, registered under another id.
fn wrapped_reference(
    id: &str,
    operation: &'static OperationInfo,
    change: impl FnOnce(&mut KernelSpec),
) -> (KernelEntry, Arc<AtomicBool>) {
    let registry = reference_engine().registry();
    let reference = registry.kernels_of(operation).next().expect("every operation has a reference");
    let mut spec = (*reference.spec).clone();
    spec.id = id.to_owned();
    spec.backend = id.split('.').next().unwrap_or(id).to_owned();
    spec.priority = 90;
    change(&mut spec);
    let fails = Arc::new(AtomicBool::new(false));
    (
        KernelEntry::new(spec, WrappedKernel(Arc::clone(&reference.kernel), Arc::clone(&fails)))
            .of(operation),
        fails,
    )
}

fn engine(entries: impl IntoIterator<Item = KernelEntry>) -> Engine {
    let engine = reference_engine();
    engine.register(entries).unwrap_or_else(|error| panic!("{error}"));
    engine
        .configure([("plan_mode".to_owned(), SettingInput::Bool(true))])
        .unwrap_or_else(|error| panic!("{error}"));
    engine
}

fn values(count: i64, step: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * step).sin()).collect()
}

fn filled(shape: &[i64], step: f32) -> Tensor {
    Tensor::from_slice(&values(shape.iter().product(), step), shape).expect("right shapes")
}

/// Arguments by name; absent if not given.
fn args<'a>(operation: &OperationInfo, given: &[(&str, TensorView<'a>)]) -> Vec<Arg<'a>> {
    let schema = operation.schema();
    let of_input = |name: &str| {
        let found = given.iter().find(|(known, _)| *known == name);
        found.map_or(Arg::Absent, |(_, view)| Arg::Tensor(*view))
    };
    let inputs = schema.inputs.iter().map(|input| of_input(&input.name));
    inputs.chain(schema.params.iter().map(|_| Arg::Absent)).collect()
}

type Steps<'a> = Vec<(&'static OperationInfo, Vec<(&'static str, TensorView<'a>)>)>;

fn calls<'a>(steps: &Steps<'a>) -> Vec<BlockCall<'a>> {
    steps.iter().map(|(operation, given)| BlockCall::new(operation, args(operation, given))).collect()
}

/// First output of the last operation, with every operation called separately on the references.
fn call_each(steps: &Steps<'_>) -> Tensor {
    let engine = reference_engine();
    let mut current: Option<Tensor> = None;
    for (operation, given) in steps {
        let mut args = args(operation, given);
        if let Some(tensor) = &current {
            args[0] = Arg::Tensor(tensor.view());
        }
        let outputs = dynamic::call(&engine, operation, &mut args).unwrap_or_else(|error| panic!("{error}"));
        let Some(Output::Tensor(tensor)) = outputs.into_iter().next() else { panic!("no tensor") };
        current = Some(tensor);
    }
    current.expect("there is a step")
}

fn run(engine: &Engine, steps: &Steps<'_>) -> (Tensor, Vec<Option<String>>) {
    run_calls(engine, &mut calls(steps))
}

fn run_calls(engine: &Engine, calls: &mut [BlockCall<'_>]) -> (Tensor, Vec<Option<String>>) {
    let run = engine.run_block(calls).unwrap_or_else(|error| panic!("{error}"));
    let Some(Output::Tensor(tensor)) = run.outputs.into_iter().next() else { panic!("no tensor") };
    (tensor, run.kernels)
}

#[test]
fn planned_block_matches_separate_calls() {
    let (x, first, second) = (filled(&[2, 3, 16], 0.37), filled(&[16], 0.1), filled(&[24], 0.2));
    let (up, bias) = (filled(&[24, 16], 0.71), filled(&[24], 0.5));
    let steps: Steps<'_> = vec![
        (&NORM_RMS, vec![("x", x.view()), ("weight", first.view())]),
        (&MLP_LINEAR, vec![("weight", up.view()), ("bias", bias.view())]),
        (&ACTIVATION_SILU, vec![]),
        (&NORM_RMS, vec![("weight", second.view())]),
    ];
    let (fast, _) = wrapped_reference("fast.linear", &MLP_LINEAR, |_| {});
    let engine = engine([fast]);
    let expected = call_each(&steps);
    for _ in 0..2 {
        let (output, kernels) = run(&engine, &steps);
        assert_eq!(output.shape(), [2, 3, 24]);
        assert_eq!(output.bytes(), expected.bytes());
        assert_eq!(kernels[1].as_deref(), Some("fast.linear"));
        assert!(kernels.iter().all(Option::is_some), "{kernels:?}");
    }
    // Without `plan_mode` each operation is a separate call.
    engine.configure([("plan_mode".to_owned(), SettingInput::Bool(false))]).unwrap();
    let (output, kernels) = run(&engine, &steps);
    assert_eq!((output.bytes(), kernels), (expected.bytes(), vec![None; 4]));
}

fn attention<'a>(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor, weight: &'a Tensor) -> Steps<'a> {
    vec![
        (&ATTENTION_GQA_PREFILL, vec![("q", q.view()), ("k", k.view()), ("v", v.view())]),
        (&ATTENTION_GQA_PREFILL, vec![("k", k.view()), ("v", v.view())]),
        (&NORM_RMS, vec![("weight", weight.view())]),
    ]
}

fn tensors() -> [Tensor; 4] {
    let q = filled(&[2, 5, 4, 8], 0.31);
    [q, filled(&[2, 7, 2, 8], 0.23), filled(&[2, 7, 2, 8], 0.77), filled(&[8], 0.4)]
}

#[test]
fn layout_is_converted_once_and_values_are_unchanged() {
    let (transposed, fails) = wrapped_reference("transposed.prefill", &ATTENTION_GQA_PREFILL, |spec| {
        spec.layouts = vec!["BHSD".to_owned()];
        spec.adapts = vec![TransformKind::Layout];
        spec.transform_cost = 3;
    });
    let engine = engine([transposed]);
    let [q, k, v, weight] = tensors();
    let steps = attention(&q, &k, &v, &weight);
    let expected = call_each(&steps);
    let planned = [Some("transposed.prefill".to_owned()), Some("transposed.prefill".to_owned())];
    for _ in 0..2 {
        let (output, kernels) = run(&engine, &steps);
        assert_eq!(kernels[..2], planned);
        assert_eq!((output.shape(), output.bytes()), (expected.shape(), expected.bytes()));
    }
    let plan = engine.run_block(&mut calls(&steps)).unwrap().plan.expect("plan_mode is on");
    assert_eq!(plan.joint.steps.iter().filter(|step| step.conversion.is_some()).count(), 2, "{plan}");
    // A failing kernel affects only its own step.
    fails.store(true, Ordering::Relaxed);
    let (output, kernels) = run(&engine, &steps);
    assert_eq!(kernels[..2], [None, None]);
    assert_eq!(output.bytes(), expected.bytes());
}

#[test]
fn alternative_dtype_is_used_where_allowed() {
    let (half, _) = wrapped_reference("half.prefill", &ATTENTION_GQA_PREFILL, |spec| {
        spec.dtypes = vec![("T".to_owned(), vec![DType::F16])];
        spec.adapts = vec![TransformKind::Dtype];
    });
    let engine = engine([half]);
    let [q, k, v, weight] = tensors();
    let steps = attention(&q, &k, &v, &weight);
    let expected = call_each(&steps);
    let (output, kernels) = run(&engine, &steps);
    assert_eq!(output.bytes(), expected.bytes(), "F16 was not allowed: {kernels:?}");
    let mut allowed: Vec<BlockCall<'_>> =
        calls(&steps).into_iter().map(|call| call.or_in(&[DType::F16])).collect();
    let (output, kernels) = run_calls(&engine, &mut allowed);
    assert_eq!(kernels[..2], [Some("half.prefill".to_owned()), Some("half.prefill".to_owned())]);
    assert_eq!((output.dtype(), output.shape()), (DType::F32, expected.shape()));
    let (output, expected) = (output.view(), expected.view());
    let pairs = output.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap());
    let mut differs = false;
    for (ours, reference) in pairs {
        assert!((ours - reference).abs() <= 1e-2 * reference.abs().max(1.0), "{ours} {reference}");
        differs |= ours != reference;
    }
    assert!(differs, "F16 was not used");
}

/// A tensor rounded to bf16.
fn rounded(tensor: &Tensor) -> Tensor {
    let mut half = Tensor::zeros(tensor.shape(), DType::BF16).expect("right sizes");
    Indices::new(tensor.shape()).for_each(|index| half.view_mut().set(&index, tensor.view().at(&index)));
    half
}

#[test]
fn wider_dtypes_are_planned_if_the_policy_allows_them() {
    let (wide, _) = wrapped_reference("wide.prefill", &ATTENTION_GQA_PREFILL, |spec| {
        spec.dtypes = vec![("T".to_owned(), vec![DType::F32])];
    });
    let engine = engine([wide]);
    let [q, k, v, weight] = tensors().map(|tensor| rounded(&tensor));
    let steps = attention(&q, &k, &v, &weight);
    let expected = call_each(&steps);
    let (output, kernels) = run(&engine, &steps);
    assert_eq!(output.bytes(), expected.bytes(), "not allowed by default: {kernels:?}");
    engine.configure([("plan_wider_dtypes".to_owned(), SettingInput::Bool(true))]).unwrap();
    let (output, kernels) = run(&engine, &steps);
    let planned = Some("wide.prefill".to_owned());
    assert_eq!(kernels[..2], [planned.clone(), planned]);
    assert_eq!((output.dtype(), output.shape()), (DType::BF16, expected.shape()));
    for index in Indices::new(expected.shape()) {
        let (ours, reference) = (output.view().at(&index), expected.view().at(&index));
        assert!((ours - reference).abs() <= 0.02 * reference.abs().max(1.0), "{ours} {reference}");
    }
    let plan = engine.run_block(&mut calls(&steps)).unwrap().plan.expect("plan_mode is on");
    let first = plan.joint.steps[0].conversion.as_ref().expect("bf16 to f32");
    assert_eq!((first.from.as_str(), first.to.as_str(), first.cost), ("BSHD bf16", "BSHD f32", 30.0));
    engine.configure([("strict_mode".to_owned(), SettingInput::Bool(true))]).unwrap();
    assert_eq!(run(&engine, &steps).0.bytes(), expected.bytes(), "strict mode converts nothing");
    assert!(plan.to_string().contains("BSHD bf16 becomes BSHD f32 in wide.prefill, cost 30.0"), "{plan}");
}

/// Arguments with params: the cases of enums by name, or integers.
fn args_with<'a>(
    operation: &OperationInfo,
    given: &[(&str, TensorView<'a>)],
    params: &[(&str, &str)],
) -> Vec<Arg<'a>> {
    let schema = operation.schema();
    let mut args = args(operation, given);
    for (name, value) in params {
        let param = schema.params.iter().position(|param| param.name == *name).expect("a param");
        let value = match operation.field(name).map(|field| &field.kind) {
            Some(FieldKind::Enum(cases)) => {
                Value::Enum(cases.iter().position(|case| case == value).expect("a case") as u32)
            }
            _ => Value::Int(value.parse().expect("an integer")),
        };
        args[schema.inputs.len() + param] = Arg::Value(value);
    }
    args
}

/// Stored values and scales of a tensor.
fn quantized(tensor: &Tensor, params: &[(&str, &str)]) -> (Tensor, Tensor) {
    let mut args = args_with(&QUANTIZE, &[("x", tensor.view())], params);
    let outputs =
        dynamic::call(&reference_engine(), &QUANTIZE, &mut args).unwrap_or_else(|error| panic!("{error}"));
    let mut tensors = outputs.into_iter().filter_map(|output| match output {
        Output::Tensor(tensor) => Some(tensor),
        _ => None,
    });
    (tensors.next().expect("values"), tensors.next().expect("scales"))
}

/// A block of one operation on quantized inputs, for an engine that has a kernel of `dense` besides references: the kernel runs it only if the
/// policy allows it, and the results are those of the reference.
fn assert_dequantized(
    dense: &'static OperationInfo,
    inputs: &[&'static str],
    call: impl Fn() -> BlockCall<'static>,
) {
    let id = format!("dense.{}", dense.name);
    let (kernel, fails) = wrapped_reference(&id, dense, |_| {});
    let engine = engine([kernel]);
    let (expected, kernels) = run_calls(&engine, &mut [call()]);
    assert_ne!(kernels[0].as_ref(), Some(&id), "not allowed by default");
    engine.configure([("plan_dequantization".to_owned(), SettingInput::Bool(true))]).unwrap();
    let (output, kernels) = run_calls(&engine, &mut [call()]);
    assert_eq!(kernels, [Some(id.clone())]);
    assert_eq!((output.dtype(), output.shape()), (expected.dtype(), expected.shape()));
    for index in Indices::new(expected.shape()) {
        let (ours, reference) = (output.view().at(&index), expected.view().at(&index));
        assert!((ours - reference).abs() <= 1e-4 * reference.abs().max(1.0), "{ours} {reference}");
    }
    let plan = engine.plan_calls(&mut [call()]).unwrap().expect("sizes are known");
    let step = &plan.joint.steps[0];
    let planned = step.dequantization.as_ref().expect("inputs are dequantized");
    assert_eq!((planned.inputs.as_slice(), planned.operation.as_str()), (inputs, &*dense.name));
    assert_eq!(planned.cost, 30.0 * inputs.len() as f64);
    let shown = format!("dequantize {} for {}, cost {:.1}", inputs.join(" and "), dense.name, planned.cost);
    assert!(plan.to_string().contains(&shown), "{plan}");
    // A kernel that fails, and strict mode, which converts nothing.
    fails.store(true, Ordering::Relaxed);
    let (output, kernels) = run_calls(&engine, &mut [call()]);
    assert_eq!((output.bytes(), kernels), (expected.bytes(), vec![None]));
    fails.store(false, Ordering::Relaxed);
    engine.configure([("strict_mode".to_owned(), SettingInput::Bool(true))]).unwrap();
    assert_eq!(run_calls(&engine, &mut [call()]).0.bytes(), expected.bytes());
}

/// Test data lives as long as the process, so that calls can be made again.
fn kept(tensor: Tensor) -> TensorView<'static> {
    Box::leak(Box::new(tensor)).view()
}

#[test]
fn inputs_are_dequantized_if_the_policy_allows_it() {
    let int4 = [("format", "int4"), ("granularity", "block"), ("block_size", "8")];
    let (weight, scale) = quantized(&filled(&[6, 16], 0.71), &int4);
    let given = [("x", kept(filled(&[2, 3, 16], 0.37))), ("weight", kept(weight)), ("scale", kept(scale))];
    assert_dequantized(&MLP_LINEAR, &["weight"], || {
        BlockCall::new(&MLP_LINEAR_WEIGHT_ONLY, args_with(&MLP_LINEAR_WEIGHT_ONLY, &given, &int4))
    });

    let f32 = ("output_dtype", "f32");
    let per_tensor = |format| [("format", format), ("granularity", "tensor")];
    let (x, x_scale) = quantized(&filled(&[3, 16], 0.37), &per_tensor("int8"));
    let (weight, weight_scale) =
        quantized(&filled(&[6, 16], 0.71), &[("format", "int8"), ("granularity", "channel")]);
    let given = [("x", x), ("weight", weight), ("x_scale", x_scale), ("weight_scale", weight_scale)];
    let given = given.map(|(name, tensor)| (name, kept(tensor)));
    assert_dequantized(&MLP_LINEAR, &["x", "weight"], || {
        let params = [("x_granularity", "tensor"), f32];
        BlockCall::new(&MLP_LINEAR_INT8, args_with(&MLP_LINEAR_INT8, &given, &params))
    });

    let (x, x_scale) = quantized(&filled(&[3, 16], 0.37), &per_tensor("fp8_e4m3"));
    let (weight, weight_scale) = quantized(&filled(&[6, 16], 0.71), &per_tensor("fp8_e4m3"));
    let given = [("x", x), ("weight", weight), ("x_scale", x_scale), ("weight_scale", weight_scale)];
    let given = given.map(|(name, tensor)| (name, kept(tensor)));
    assert_dequantized(&MLP_LINEAR, &["x", "weight"], || {
        let params = [("x_granularity", "tensor"), ("weight_granularity", "tensor"), f32];
        BlockCall::new(&MLP_LINEAR_FP8, args_with(&MLP_LINEAR_FP8, &given, &params))
    });

    let mxfp4 = [("format", "mxfp4"), ("granularity", "block")];
    let (x, x_scale) = quantized(&filled(&[3, 64], 0.37), &mxfp4);
    let (weight, weight_scale) = quantized(&filled(&[6, 64], 0.71), &mxfp4);
    let given = [("x", x), ("weight", weight), ("x_scale", x_scale), ("weight_scale", weight_scale)];
    let given = given.map(|(name, tensor)| (name, kept(tensor)));
    assert_dequantized(&MLP_LINEAR, &["x", "weight"], || {
        let params = [("format", "mxfp4"), f32];
        BlockCall::new(&MLP_LINEAR_FP4, args_with(&MLP_LINEAR_FP4, &given, &params))
    });

    let (gate_up, gate_up_scale) = quantized(&filled(&[3, 8, 16], 0.71), &int4);
    let (down, down_scale) = quantized(&filled(&[3, 16, 4], 0.53), &int4);
    let given = [
        ("x", filled(&[2, 16], 0.37)),
        ("indices", Tensor::from_slice(&[0i32, 2, 1, 0], &[2, 2]).unwrap()),
        ("weights", Tensor::from_slice(&[0.25f32, 0.75, 0.5, 0.5], &[2, 2]).unwrap()),
        ("gate_up_weight", gate_up),
        ("gate_up_scale", gate_up_scale),
        ("down_weight", down),
        ("down_scale", down_scale),
    ];
    let given = given.map(|(name, tensor)| (name, kept(tensor)));
    assert_dequantized(&MOE_EXPERTS, &["gate_up_weight", "down_weight"], || {
        let params = [("format", "int4"), ("granularity", "group"), ("group_size", "8")];
        BlockCall::new(&MOE_EXPERTS_QUANTIZED, args_with(&MOE_EXPERTS_QUANTIZED, &given, &params))
    });
}

#[test]
fn calls_that_are_excluded_or_have_a_kernel_are_not_dequantized() {
    let rows = [("format", "int8"), ("granularity", "channel")];
    let (weight, scale) = quantized(&filled(&[6, 16], 0.71), &rows);
    let given = [("x", kept(filled(&[3, 16], 0.37))), ("weight", kept(weight)), ("scale", kept(scale))];
    let call = || BlockCall::new(&MLP_LINEAR_WEIGHT_ONLY, args_with(&MLP_LINEAR_WEIGHT_ONLY, &given, &rows));
    let (dense, _) = wrapped_reference("dense.linear", &MLP_LINEAR, |_| {});
    let (own, _) = wrapped_reference("own.linear", &MLP_LINEAR_WEIGHT_ONLY, |spec| {
        spec.priority = 0;
        spec.reference = false;
    });
    let engine = engine([dense, own]);
    engine.configure([("plan_dequantization".to_owned(), SettingInput::Bool(true))]).unwrap();
    assert_eq!(run_calls(&engine, &mut [call()]).1, [Some("own.linear".to_owned())], "it has a kernel");
    engine.unregister_backend("own");
    assert_eq!(run_calls(&engine, &mut [call()]).1, [Some("dense.linear".to_owned())]);
    engine.unregister_operation("mlp.linear").unwrap();
    let reference = Some("reference.mlp.linear.weight_only".to_owned());
    assert_eq!(run_calls(&engine, &mut [call()]).1, [reference]);
}

#[test]
fn cached_plan_is_invalidated_with_its_snapshot() {
    let engine = engine([]);
    let [q, k, v, weight] = tensors();
    let steps = attention(&q, &k, &v, &weight);
    let reference = Some("reference.attention.gqa.prefill".to_owned());
    assert_eq!(run(&engine, &steps).1[0], reference);
    let (better, _) = wrapped_reference("better.prefill", &ATTENTION_GQA_PREFILL, |_| {});
    engine.register([better]).unwrap();
    assert_eq!(run(&engine, &steps).1[0].as_deref(), Some("better.prefill"));
    engine.unregister_backend("better");
    assert_eq!(run(&engine, &steps).1[0], reference);
    // A thread-local scope, and only while it lasts.
    let scope = engine.disabled();
    assert_eq!(run(&engine, &steps).1[0], reference);
    drop(scope);
}

#[test]
fn shape_mismatch_is_reported_for_its_operation() {
    let engine = engine([]);
    let (x, weight) = (filled(&[3, 16], 0.3), filled(&[8, 15], 0.2));
    let steps: Steps<'_> =
        vec![(&NORM_RMS, vec![("x", x.view())]), (&MLP_LINEAR, vec![("weight", weight.view())])];
    for plan_mode in [true, false] {
        engine.configure([("plan_mode".to_owned(), SettingInput::Bool(plan_mode))]).unwrap();
        let error = engine.run_block(&mut calls(&steps)).unwrap_err();
        assert!(error.to_string().starts_with("mlp.linear"), "{error}");
    }
}

/// A kernel that needs the caller's own objects, as those of Python do.
struct Hosted;

impl Kernel for Hosted {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], _: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        Err(KernelError::declined("a block has no objects of the caller"))
    }

    fn needs_caller(&self) -> bool {
        true
    }
}

#[test]
fn kernels_that_need_the_caller_are_not_planned() {
    let (mut hosted, _) = wrapped_reference("hosted.norm.rms", &NORM_RMS, |_| {});
    hosted.kernel = Arc::new(Hosted);
    let engine = engine([hosted]);
    let (x, weight) = (filled(&[3, 8], 0.3), filled(&[8], 0.7));
    let steps: Steps<'_> =
        vec![(&NORM_RMS, vec![("x", x.view()), ("weight", weight.view())]), (&ACTIVATION_SILU, vec![])];
    let plan = engine.plan_calls(&mut calls(&steps)).unwrap().expect("all sizes are known");
    let planned: Vec<&str> = plan.joint.steps.iter().map(|step| step.kernel.as_str()).collect();
    assert_eq!(planned, ["reference.norm.rms", "reference.activation.silu"], "{plan}");
    assert_eq!(plan.greedy.steps.len(), 2, "{plan}");
    let (found, kernels) = run(&engine, &steps);
    assert!(kernels.iter().all(Option::is_some), "{kernels:?}");
    assert_eq!(found.bytes(), call_each(&steps).bytes());
}
