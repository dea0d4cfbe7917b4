//! Blocks of real operations: run as planned they give what the operations give one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lz_core::plan::TransformKind;
use lz_core::{
    Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run, Tensor, TensorView,
};
use lz_engine::Engine;
use lz_engine::dynamic::{self, Output};
use lz_engine::planner::BlockCall;
use lz_engine::policy::layer::Given;
use lz_ops::{ACTIVATION_SILU, ATTENTION_GQA_PREFILL, MLP_LINEAR, NORM_RMS, reference_engine};

/// A reference behind another spec, which may be told to fail.
struct Behind(Arc<dyn Kernel>, Arc<AtomicBool>);

impl Kernel for Behind {
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
            return Err(KernelError::failed("told to fail"));
        }
        self.0.run(args, outputs, run)
    }
}

/// The operation's reference as a kernel of this id.
fn behind(
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
    (KernelEntry::new(spec, Behind(Arc::clone(&reference.kernel), Arc::clone(&fails))).of(operation), fails)
}

fn engine(entries: impl IntoIterator<Item = KernelEntry>) -> Engine {
    let engine = reference_engine();
    engine.register(entries).unwrap_or_else(|error| panic!("{error}"));
    engine.configure([("plan_mode".to_owned(), Given::Bool(true))]).unwrap_or_else(|error| panic!("{error}"));
    engine
}

fn numbers(count: i64, step: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * step).sin()).collect()
}

fn filled(shape: &[i64], step: f32) -> Tensor {
    Tensor::from_slice(&numbers(shape.iter().product(), step), shape).expect("right shapes")
}

/// Arguments by name, absent where nothing is said.
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

/// The last operation's first output, every operation called by itself on the references.
fn one_by_one(steps: &Steps<'_>) -> Tensor {
    let engine = reference_engine();
    let mut flowing: Option<Tensor> = None;
    for (operation, given) in steps {
        let mut args = args(operation, given);
        if let Some(tensor) = &flowing {
            args[0] = Arg::Tensor(tensor.view());
        }
        let outputs = dynamic::call(&engine, operation, &mut args).unwrap_or_else(|error| panic!("{error}"));
        let Some(Output::Tensor(tensor)) = outputs.into_iter().next() else { panic!("no tensor") };
        flowing = Some(tensor);
    }
    flowing.expect("there is a step")
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
fn a_feed_forward_block_gives_what_its_operations_give() {
    let (x, first, second) = (filled(&[2, 3, 16], 0.37), filled(&[16], 0.1), filled(&[24], 0.2));
    let (up, bias) = (filled(&[24, 16], 0.71), filled(&[24], 0.5));
    let steps: Steps<'_> = vec![
        (&NORM_RMS, vec![("x", x.view()), ("weight", first.view())]),
        (&MLP_LINEAR, vec![("weight", up.view()), ("bias", bias.view())]),
        (&ACTIVATION_SILU, vec![]),
        (&NORM_RMS, vec![("weight", second.view())]),
    ];
    let (fast, _) = behind("fast.linear", &MLP_LINEAR, |_| {});
    let engine = engine([fast]);
    let truth = one_by_one(&steps);
    for _ in 0..2 {
        let (made, kernels) = run(&engine, &steps);
        assert_eq!(made.shape(), [2, 3, 24]);
        assert_eq!(made.bytes(), truth.bytes());
        assert_eq!(kernels[1].as_deref(), Some("fast.linear"));
        assert!(kernels.iter().all(Option::is_some), "{kernels:?}");
    }
    // Without plan_mode each is a call of its own.
    engine.configure([("plan_mode".to_owned(), Given::Bool(false))]).unwrap();
    let (made, kernels) = run(&engine, &steps);
    assert_eq!((made.bytes(), kernels), (truth.bytes(), vec![None; 4]));
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
fn what_flows_is_converted_once_and_the_values_stay() {
    let (turned, fails) = behind("turned.prefill", &ATTENTION_GQA_PREFILL, |spec| {
        spec.layouts = vec!["BHSD".to_owned()];
        spec.adapts = vec![TransformKind::Layout];
        spec.transform_cost = 3;
    });
    let engine = engine([turned]);
    let [q, k, v, weight] = tensors();
    let steps = attention(&q, &k, &v, &weight);
    let truth = one_by_one(&steps);
    let planned = [Some("turned.prefill".to_owned()), Some("turned.prefill".to_owned())];
    for _ in 0..2 {
        let (made, kernels) = run(&engine, &steps);
        assert_eq!(kernels[..2], planned);
        assert_eq!((made.shape(), made.bytes()), (truth.shape(), truth.bytes()));
    }
    let plan = engine.run_block(&mut calls(&steps)).unwrap().plan.expect("plan_mode is on");
    assert_eq!(plan.joint.steps.iter().filter(|step| step.conversion.is_some()).count(), 2, "{plan}");
    // A kernel that fails is a matter of its step alone.
    fails.store(true, Ordering::Relaxed);
    let (made, kernels) = run(&engine, &steps);
    assert_eq!(kernels[..2], [None, None]);
    assert_eq!(made.bytes(), truth.bytes());
}

#[test]
fn another_element_type_is_used_where_it_is_allowed() {
    let (half, _) = behind("half.prefill", &ATTENTION_GQA_PREFILL, |spec| {
        spec.dtypes = vec![("T".to_owned(), vec![DType::F16])];
        spec.adapts = vec![TransformKind::Dtype];
    });
    let engine = engine([half]);
    let [q, k, v, weight] = tensors();
    let steps = attention(&q, &k, &v, &weight);
    let truth = one_by_one(&steps);
    let (made, kernels) = run(&engine, &steps);
    assert_eq!(made.bytes(), truth.bytes(), "nobody allowed it: {kernels:?}");
    let mut allowed: Vec<BlockCall<'_>> =
        calls(&steps).into_iter().map(|call| call.or_in(&[DType::F16])).collect();
    let (made, kernels) = run_calls(&engine, &mut allowed);
    assert_eq!(kernels[..2], [Some("half.prefill".to_owned()), Some("half.prefill".to_owned())]);
    assert_eq!((made.dtype(), made.shape()), (DType::F32, truth.shape()));
    let (made, truth) = (made.view(), truth.view());
    let pairs = made.as_slice::<f32>().unwrap().iter().zip(truth.as_slice::<f32>().unwrap());
    let mut differs = false;
    for (ours, true_one) in pairs {
        assert!((ours - true_one).abs() <= 1e-2 * true_one.abs().max(1.0), "{ours} {true_one}");
        differs |= ours != true_one;
    }
    assert!(differs, "halves were used");
}

#[test]
fn a_kept_plan_ends_with_the_state_that_it_was_made_in() {
    let engine = engine([]);
    let [q, k, v, weight] = tensors();
    let steps = attention(&q, &k, &v, &weight);
    let reference = Some("reference.attention.gqa.prefill".to_owned());
    assert_eq!(run(&engine, &steps).1[0], reference);
    let (better, _) = behind("better.prefill", &ATTENTION_GQA_PREFILL, |_| {});
    engine.register([better]).unwrap();
    assert_eq!(run(&engine, &steps).1[0].as_deref(), Some("better.prefill"));
    engine.unregister_backend("better");
    assert_eq!(run(&engine, &steps).1[0], reference);
    // For one thread only, and while it lasts.
    let scope = engine.disabled();
    assert_eq!(run(&engine, &steps).1[0], reference);
    drop(scope);
}

#[test]
fn what_does_not_fit_is_the_error_of_its_operation() {
    let engine = engine([]);
    let (x, weight) = (filled(&[3, 16], 0.3), filled(&[8, 15], 0.2));
    let steps: Steps<'_> =
        vec![(&NORM_RMS, vec![("x", x.view())]), (&MLP_LINEAR, vec![("weight", weight.view())])];
    for together in [true, false] {
        engine.configure([("plan_mode".to_owned(), Given::Bool(together))]).unwrap();
        let error = engine.run_block(&mut calls(&steps)).unwrap_err();
        assert!(error.to_string().starts_with("mlp.linear"), "{error}");
    }
}
