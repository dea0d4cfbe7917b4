//! Blocks of operations whose kernels are selected jointly, and run as a plan.

use lz_core::context::FieldKind;
use lz_core::expr::Value;
use lz_core::plan::TransformKind;
use lz_core::{
    Arg, FusedKernel, FusedPart, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run, Tensor,
    TensorView,
};
use lz_engine::Engine;
use lz_engine::dynamic::Output;
use lz_engine::planner::{BlockCall, Step};
use lz_ops::{
    ACTIVATION_SILU, ATTENTION_GQA_PREFILL, MLP_LINEAR, NORM_RMS, NORM_RMS_ADD, QUANTIZE, QuantizeFormat,
    QuantizeGranularity,
};
use lz_scenarios::calls::{Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, register};
use lz_scenarios::kernels::{noop_kernel, spec};

fn layer() -> Vec<Step> {
    let prefill = Prefill::llama3_8b();
    let step = || Step::new(prefill.operation(), prefill.context().unwrap());
    vec![step(), step(), step()]
}

/// Three attention operations in sequence on an H100: a kernel that ranks second alone is selected in the
/// joint plan, because it avoids layout conversions.
#[test]
fn a_joint_plan_avoids_layout_conversions() {
    let engine = engine_on("h100");
    for (id, priority, makes) in [("mover.prefill", 91, Some("BHSD")), ("turned.prefill", 93, None)] {
        let mut kernel =
            spec(id, &ATTENTION_GQA_PREFILL, "1", lz_core::device::Platform::Cuda).priority(priority);
        kernel.layouts = vec![if makes.is_some() { "BSHD" } else { "BHSD" }.to_owned()];
        kernel.produces_layout = makes.map(str::to_owned);
        kernel.adapts = vec![TransformKind::Layout];
        kernel.transform_cost = 4;
        register(&engine, [noop_kernel(kernel, &ATTENTION_GQA_PREFILL)]);
    }
    assert_eq!(Prefill::llama3_8b().selected(&engine).unwrap(), "mover.prefill");
    let plan = engine.plan_block(&layer()).unwrap();
    let kernels: Vec<&str> = plan.joint.steps.iter().map(|step| step.kernel.as_str()).collect();
    assert_eq!(kernels, ["mover.prefill", "turned.prefill", "turned.prefill"], "{plan}");
    assert!(plan.saves() > 0.0 && plan.joint.steps[1].conversion.is_none(), "{plan}");
    assert_eq!(plan.differences[0].alone.0, "mover.prefill");
}

/// A fused kernel is cheaper than two kernels; a lock on one of the two operations prevents the fusion.
#[test]
fn a_lock_on_a_neighbor_prevents_fusion() {
    let engine = engine_on("h100");
    let mut fused = spec("fused.norm_prefill", &ATTENTION_GQA_PREFILL, "1", lz_core::device::Platform::Cuda);
    fused.priority = 84;
    fused.fuses = vec![NORM_RMS.name.to_string()];
    register(&engine, [noop_kernel(fused, &ATTENTION_GQA_PREFILL)]);
    let (norm, prefill) = (Norm::llama3_8b(), Prefill::llama3_8b());
    let block = [
        Step::new(norm.operation(), norm.context().unwrap()),
        Step::new(prefill.operation(), prefill.context().unwrap()),
    ];
    let plan = engine.plan_block(&block).unwrap();
    assert_eq!(plan.joint.steps[0].kernel, "fused.norm_prefill", "{plan}");
    apply_policy(&engine, "locks: { norm.rms: torch.norm.rms }\n");
    let plan = engine.plan_block(&block).unwrap();
    let kernels: Vec<&str> = plan.joint.steps.iter().map(|step| step.kernel.as_str()).collect();
    assert_eq!(kernels, ["torch.norm.rms", "flash_attn.v3.prefill"], "{plan}");
}

fn args<'a>(operation: &OperationInfo, given: &[TensorView<'a>]) -> Vec<Arg<'a>> {
    let count = operation.schema().inputs.len() + operation.schema().params.len();
    let given = given.iter().map(|view| Arg::Tensor(*view));
    given.chain(std::iter::repeat_with(|| Arg::Absent)).take(count).collect()
}

fn norm_then_linear(engine: &Engine, x: &Tensor, weight: &Tensor) -> (Vec<f32>, Vec<Option<String>>) {
    let mut block = [
        BlockCall::new(&NORM_RMS, args(&NORM_RMS, &[x.view()])),
        BlockCall::new(&MLP_LINEAR, args(&MLP_LINEAR, &[x.view(), weight.view()])),
    ];
    let run = engine.run_block(&mut block).unwrap_or_else(|error| panic!("{error}"));
    let [Output::Tensor(output)] = run.outputs.as_slice() else { panic!("one tensor") };
    (output.view().as_slice::<f32>().unwrap().to_vec(), run.kernels)
}

/// `plan_mode: true` in the file: a norm and a linear layer run as one planned block, with the values of the
/// two separate calls.
#[test]
fn a_planned_block_runs_with_the_values_of_its_calls() {
    let test_data = |count: usize| (0..count).map(|at| (at as f32 * 0.7).cos()).collect::<Vec<f32>>();
    let x = Tensor::from_slice(&test_data(48), &[3, 16]).unwrap();
    let weight = Tensor::from_slice(&test_data(128), &[8, 16]).unwrap();
    let (expected_values, kernels) =
        norm_then_linear(&lz_scenarios::engines::reference_engine(), &x, &weight);
    assert_eq!(kernels, [None, None], "without plan_mode each operation is a separate call");
    let engine = lz_scenarios::engines::reference_engine();
    register(&engine, lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == NORM_RMS.name));
    apply_policy(&engine, "plan_mode: true\n");
    let (planned, kernels) = norm_then_linear(&engine, &x, &weight);
    assert!(kernels[0].as_deref().is_some_and(|kernel| kernel.starts_with("cpu.norm.rms")), "{kernels:?}");
    assert_eq!(kernels[1].as_deref(), Some("reference.mlp.linear"));
    for (a, b) in planned.iter().zip(&expected_values) {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} {b}");
    }
}

/// A linear layer fused with SiLU: the `mlp.linear` kernel with its activation parameter set.
struct LinearThenSilu(KernelEntry);

impl FusedKernel for LinearThenSilu {
    fn run_fused(
        &self,
        parts: &mut [FusedPart<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let [linear, silu] = parts else { return Err(KernelError::failed("two parts")) };
        assert_eq!(
            (linear.operation.name.as_ref(), silu.operation.name.as_ref()),
            ("mlp.linear", "activation.silu")
        );
        assert!(!silu.args[0].is_given(), "the intermediate tensor is never allocated");
        let activation = linear.args.last_mut().ok_or_else(|| KernelError::failed("a param"))?;
        let Some(FieldKind::Enum(cases)) = MLP_LINEAR.field("activation").map(|field| &field.kind) else {
            panic!("an enum");
        };
        let silu = cases.iter().position(|case| case == "silu").expect("it is one of them");
        *activation = Arg::Value(Value::Enum(silu as u32));
        self.0.kernel.run(&mut linear.args, outputs, run)
    }
}

fn linear(given: impl Fn(KernelSpec) -> KernelSpec) -> KernelEntry {
    let all = lz_cpu::kernels();
    let plain = all
        .into_iter()
        .find(|entry| entry.spec.operation == MLP_LINEAR.name && entry.spec.device.isa.is_empty());
    let plain = plain.unwrap_or_else(|| {
        let all = lz_ops::reference_kernels::kernels();
        all.into_iter()
            .find(|entry| entry.spec.operation == MLP_LINEAR.name)
            .expect("every operation has one")
    });
    let mut spec = given(KernelSpec::clone(&plain.spec));
    (spec.id, spec.backend) = ("fusing.mlp.linear".to_owned(), "fusing".to_owned());
    KernelEntry { spec: std::sync::Arc::new(spec), ..plain.clone() }
}

/// Runs a norm, a linear layer and an activation; returns the values and the kernel ids.
fn norm_linear_silu(engine: &Engine, x: &Tensor, weight: &Tensor) -> (Vec<f32>, Vec<Option<String>>) {
    let mut block = [
        BlockCall::new(&NORM_RMS, args(&NORM_RMS, &[x.view()])),
        BlockCall::new(&MLP_LINEAR, args(&MLP_LINEAR, &[x.view(), weight.view()])),
        BlockCall::new(&ACTIVATION_SILU, args(&ACTIVATION_SILU, &[x.view()])),
    ];
    let run = engine.run_block(&mut block).unwrap_or_else(|error| panic!("{error}"));
    let [Output::Tensor(output)] = run.outputs.as_slice() else { panic!("one tensor") };
    (output.view().as_slice::<f32>().unwrap().to_vec(), run.kernels)
}

/// A fused kernel of a plan also runs its neighbor, with the values of the separate calls; when it fails, the
/// operations run separately.
#[test]
fn a_fused_kernel_gives_the_values_of_separate_calls() {
    let test_data = |count: usize| (0..count).map(|at| (at as f32 * 0.3).sin()).collect::<Vec<f32>>();
    let x = Tensor::from_slice(&test_data(48), &[3, 16]).unwrap();
    let weight = Tensor::from_slice(&test_data(128), &[8, 16]).unwrap();
    let (expected_values, _) = norm_linear_silu(&lz_scenarios::engines::reference_engine(), &x, &weight);
    let fuses = |mut spec: KernelSpec| {
        spec.fuses = vec![ACTIVATION_SILU.name.to_string()];
        spec
    };
    let near = |values: &[f32]| {
        for (a, b) in values.iter().zip(&expected_values) {
            assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} {b}");
        }
    };

    let engine = lz_scenarios::engines::reference_engine();
    let entry = linear(fuses);
    register(&engine, [entry.clone().fusing(LinearThenSilu(entry))]);
    apply_policy(&engine, "plan_mode: true\n");
    let (values, kernels) = norm_linear_silu(&engine, &x, &weight);
    let expected = ["reference.norm.rms", "fusing.mlp.linear", "fusing.mlp.linear"];
    assert_eq!(kernels.iter().map(|kernel| kernel.as_deref().unwrap_or("")).collect::<Vec<_>>(), expected);
    near(&values);

    // A lock on the neighbor prevents fusion, and so does a kernel that declares fusion without implementing
    // it.
    apply_policy(&engine, "plan_mode: true\nlocks: { activation.silu: reference.activation.silu }\n");
    let (values, kernels) = norm_linear_silu(&engine, &x, &weight);
    assert_eq!(kernels[2].as_deref(), Some("reference.activation.silu"));
    near(&values);
    let engine = lz_scenarios::engines::reference_engine();
    register(&engine, [linear(fuses)]);
    apply_policy(&engine, "plan_mode: true\n");
    let (values, kernels) = norm_linear_silu(&engine, &x, &weight);
    assert_eq!(kernels[2].as_deref(), Some("reference.activation.silu"));
    near(&values);

    // A failing fused kernel is handled as any failure: the operations run separately.
    struct FailingFusion;
    impl FusedKernel for FailingFusion {
        fn run_fused(
            &self,
            _: &mut [FusedPart<'_>],
            _: &mut [OutArg<'_>],
            _: &mut Run<'_>,
        ) -> Result<(), KernelError> {
            panic!("out of order");
        }
    }
    let engine = lz_scenarios::engines::reference_engine();
    register(&engine, [linear(fuses).fusing(FailingFusion)]);
    apply_policy(&engine, "plan_mode: true\n");
    let (values, kernels) = norm_linear_silu(&engine, &x, &weight);
    assert_eq!(kernels, [Some("reference.norm.rms".to_owned()), None, None]);
    near(&values);
    assert_eq!(engine.metrics().failures, 1);
}

/// Runs a norm, with a residual if one is given, and the quantization of its result; returns codes, scales and kernel ids.
fn norm_quantize(
    engine: &Engine,
    x: &Tensor,
    residual: Option<&mut Tensor>,
    format: u32,
    granularity: u32,
    given: Option<&(Tensor, Tensor)>,
) -> (Vec<u8>, Vec<u8>, Vec<Option<String>>) {
    let norm = match residual {
        None => BlockCall::new(&NORM_RMS, args(&NORM_RMS, &[x.view()])),
        Some(residual) => {
            let mut given = args(&NORM_RMS_ADD, &[x.view()]);
            given[1] = Arg::TensorMut(residual.view_mut());
            BlockCall::new(&NORM_RMS_ADD, given)
        }
    };
    let mut quantize = args(&QUANTIZE, &[x.view()]);
    let inputs = QUANTIZE.schema().inputs.len();
    if let Some((scale, zero_point)) = given {
        (quantize[1], quantize[2]) = (Arg::Tensor(scale.view()), Arg::Tensor(zero_point.view()));
    }
    quantize[inputs] = Arg::Value(Value::Enum(format));
    quantize[inputs + 1] = Arg::Value(Value::Enum(granularity));
    let mut block = [norm, BlockCall::new(&QUANTIZE, quantize)];
    let run = engine.run_block(&mut block).unwrap_or_else(|error| panic!("{error}"));
    let (codes, scales) = match run.outputs.as_slice() {
        [Output::Tensor(codes), Output::Tensor(scales)] => (codes, scales.bytes().to_vec()),
        [Output::Tensor(codes), ..] => (codes, Vec::new()),
        _ => panic!("codes, and computed scales"),
    };
    (codes.bytes().to_vec(), scales, run.kernels)
}

/// Native norms quantize their rows while they are in cache: a planned block gives the codes and scales of the separate calls, for every
/// format, also with a residual. Scales that rows share are not fused.
#[test]
fn a_norm_fuses_the_quantization_of_its_result() {
    let test_data = |count: usize| (0..count).map(|at| (at as f32 * 0.37).sin() * 3.0).collect::<Vec<f32>>();
    let x = Tensor::from_slice(&test_data(5 * 96), &[5, 96]).unwrap();
    let formats = QuantizeFormat::CASES.len() as u32;
    let [tensor, channel, block] = ["tensor", "channel", "block"]
        .map(|name| QuantizeGranularity::CASES.iter().position(|case| case == name).unwrap() as u32);
    let native = |plan: &str| {
        let engine = lz_scenarios::engines::reference_engine();
        let wanted = [&NORM_RMS, &NORM_RMS_ADD, &QUANTIZE];
        let is_wanted = |entry: &KernelEntry| wanted.iter().any(|info| info.name == entry.spec.operation);
        register(&engine, lz_cpu::kernels().into_iter().filter(is_wanted));
        apply_policy(&engine, plan);
        engine
    };
    let (separate, planned) = (native("plan_mode: false\n"), native("plan_mode: true\n"));
    for format in 0..formats {
        let name = &*QuantizeFormat::CASES[format as usize];
        // The four-bit floats have blocks of their own sizes, which are the defaults.
        let granularities =
            if matches!(name, "mxfp4" | "nvfp4") { vec![block] } else { vec![channel, block] };
        for granularity in granularities {
            for adds in [false, true] {
                // Unsigned formats require scales.
                let groups: Vec<i64> = if granularity == block { vec![5, 3] } else { vec![5] };
                let count = groups.iter().product::<i64>() as usize;
                let given = name.starts_with("uint").then(|| {
                    let scales: Vec<f32> = (0..count).map(|at| 0.03 + at as f32 * 0.01).collect();
                    let zero_points: Vec<i32> = (0..count as i32).collect();
                    let scales = Tensor::from_slice(&scales, &groups).unwrap();
                    (scales, Tensor::from_slice(&zero_points, &groups).unwrap())
                });
                let run = |engine: &Engine| {
                    let mut residual = Tensor::from_slice(&test_data(5 * 96 + 7)[7..], &[5, 96]).unwrap();
                    let result = norm_quantize(
                        engine,
                        &x,
                        adds.then_some(&mut residual),
                        format,
                        granularity,
                        given.as_ref(),
                    );
                    (result, residual.bytes().to_vec())
                };
                let ((codes, scales, _), residual) = run(&separate);
                let ((found_codes, found_scales, kernels), found_residual) = run(&planned);
                let norm = if adds { "cpu.norm.rms.add." } else { "cpu.norm.rms." };
                assert!(kernels[0].as_deref().is_some_and(|kernel| kernel.starts_with(norm)), "{kernels:?}");
                assert_eq!(kernels[0], kernels[1], "one kernel runs both");
                assert_eq!(
                    (found_codes, found_scales, found_residual),
                    (codes, scales, residual),
                    "{format} {granularity} {adds}"
                );
            }
        }
    }
    let (codes, scales, _) = norm_quantize(&separate, &x, None, 0, tensor, None);
    let (found_codes, found_scales, kernels) = norm_quantize(&planned, &x, None, 0, tensor, None);
    assert_eq!((found_codes, found_scales), (codes, scales), "{kernels:?}");
}
