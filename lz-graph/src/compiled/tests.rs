use lz_core::{DType, Tensor, TensorView};
use lz_test_support::Folder;

use super::*;
use crate::build::Builder;
use crate::dim::Dim;
use crate::testing::engine;

/// `relu(x · w + b)`.
fn linear() -> Graph {
    let mut build = Builder::new();
    let rows = Dim::from(build.graph_mut().symbol("rows", 0, 64));
    let x = build.input("x", vec![rows, Dim::from(4)], DType::F32);
    let weight: Vec<f32> = (0..12).map(|value| (value as f32 * 0.37).sin()).collect();
    let weight = build.owned(Tensor::from_slice(&weight, &[3, 4]).unwrap());
    let bias = build.owned(Tensor::from_slice(&[0.5f32, -0.5, 0.0], &[3]).unwrap());
    let y = build.linear(x, weight, Some(bias)).unwrap();
    let y = build.activation("relu", y, None).unwrap();
    build.output("y", y);
    build.finish().unwrap()
}

fn input(x: &[f32]) -> Vec<RunInput<'_>> {
    vec![RunInput::Read(TensorView::from_slice(x, &[x.len() as i64 / 4, 4]).unwrap())]
}

#[test]
fn explanation_shows_every_stage() {
    let compiled = CompiledModel::new(&engine(), linear(), &Options::default()).unwrap();
    let shapes = [InputShape { shape: vec![2, 4], dtype: DType::F32 }];
    let text = compiled.explain(&shapes).unwrap();
    for part in
        ["stage passes: ", " nodes imported, ", "arena ", "mlp.linear", " ▸ ", "score ", " bytes  from "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("info after execution (kernels): "), "references are reported: {text}");
}

#[test]
fn decisions_are_frozen_and_compared() {
    let engine = engine();
    let compiled = CompiledModel::new(&engine, linear(), &Options::default()).unwrap();
    assert_eq!(compiled.freeze().unwrap().decisions().count(), 0, "nothing is planned yet");
    compiled.run(input(&[0.5; 8])).unwrap();
    let lockfile = compiled.freeze().unwrap();
    assert!(lockfile.decisions().any(|decision| decision.operation == "mlp.linear"), "{}", lockfile.text());
    assert_eq!(compiled.verify_decisions(&lockfile).unwrap(), Vec::<String>::new());
    let mut other = Lockfile::new("", "", "");
    for decision in lockfile.decisions() {
        other.add(lz_engine::table::LockedDecision { kernel: "elsewhere".to_owned(), ..decision.clone() });
    }
    let differing = compiled.verify_decisions(&other).unwrap();
    assert!(differing.iter().any(|line| line.contains("expected elsewhere")), "{differing:?}");
}

fn set(engine: &Engine, key: &str, patterns: &[&str]) {
    let patterns = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
    engine.configure([(key.to_owned(), lz_engine::policy::layer::SettingInput::Texts(patterns))]).unwrap();
}

/// A second kernel of an operation, which a policy can prefer or deny.
fn register_twin(engine: &Engine) -> String {
    let registry = engine.registry();
    let reference = registry.kernels().find(|entry| entry.spec.operation == "mlp.linear").unwrap().clone();
    let mut twin = reference;
    let mut spec = (*twin.spec).clone();
    spec.id = "twin.linear".to_owned();
    spec.backend = "twin".to_owned();
    spec.reference = false;
    twin.spec = spec.into();
    engine.register(vec![twin]).unwrap();
    set(engine, "prefer", &["twin.linear"]);
    "twin.linear".to_owned()
}

fn kernels(compiled: &CompiledModel) -> Vec<String> {
    let plans = compiled.session().plans();
    plans.iter().flat_map(|plan| plan.steps.iter().map(|step| step.pinned.entry().spec.id.clone())).collect()
}

#[test]
fn changed_policy_plans_again_at_the_next_run() {
    let engine = engine();
    let twin = register_twin(&engine);
    let compiled = CompiledModel::new(&engine, linear(), &Options::default()).unwrap();
    let x = [0.5; 8];
    let expected = compiled.run(input(&x)).unwrap();
    assert!(kernels(&compiled).contains(&twin), "{:?}", kernels(&compiled));
    set(&engine, "deny", &[&twin]);
    let found = compiled.run(input(&x)).unwrap();
    assert_eq!(found[0].bytes(), expected[0].bytes());
    assert!(!kernels(&compiled).contains(&twin), "{:?}", kernels(&compiled));
    assert_eq!(compiled.session().cached_plans(), 1);
}

#[test]
fn changed_policy_is_refused_if_another_kernel_would_run() {
    let engine = engine();
    let twin = register_twin(&engine);
    let options = Options { on_change: OnChange::Refuse, ..Options::default() };
    let compiled = CompiledModel::new(&engine, linear(), &options).unwrap();
    let x = [0.5; 8];
    compiled.run(input(&x)).unwrap();
    set(&engine, "deny", &["unrelated.*"]);
    compiled.run(input(&x)).expect("the same kernels are selected");
    set(&engine, "deny", &[&twin]);
    let error = compiled.run(input(&x)).unwrap_err().to_string();
    assert!(error.contains("twin.linear was selected, now "), "{error}");
    set(&engine, "deny", &[]);
    compiled.run(input(&x)).expect("the earlier state is back");
}

/// A kernel that fails while it is broken.
struct Fragile {
    inner: std::sync::Arc<dyn lz_core::kernel::Kernel>,
    broken: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl lz_core::kernel::Kernel for Fragile {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(
        &self,
        args: &mut [lz_core::args::Arg<'_>],
        outputs: &mut [lz_core::args::OutArg<'_>],
        run: &mut lz_core::Run<'_>,
    ) -> Result<(), lz_core::KernelError> {
        match self.broken.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(lz_core::KernelError::failed("broken")),
            false => self.inner.run(args, outputs, run),
        }
    }
}

#[test]
fn open_circuit_plans_again_without_the_kernel() {
    let engine = engine();
    let reference =
        engine.registry().kernels().find(|entry| entry.spec.operation == "mlp.linear").unwrap().clone();
    let broken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut spec = (*reference.spec).clone();
    (spec.id, spec.backend, spec.reference) = ("fragile.linear".to_owned(), "fragile".to_owned(), false);
    let kernel = std::sync::Arc::new(Fragile { inner: reference.kernel.clone(), broken: broken.clone() });
    engine.register(vec![lz_core::KernelEntry { spec: spec.into(), kernel, ..reference }]).unwrap();
    set(&engine, "prefer", &["fragile.linear"]);
    let compiled = CompiledModel::new(&engine, linear(), &Options::default()).unwrap();
    let x = [0.25; 8];
    let expected = compiled.run(input(&x)).unwrap();
    assert!(kernels(&compiled).contains(&"fragile.linear".to_owned()));
    broken.store(true, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..12 {
        let found = compiled.run(input(&x)).expect("another kernel computes the step");
        assert_eq!(found[0].bytes(), expected[0].bytes());
    }
    assert!(!kernels(&compiled).contains(&"fragile.linear".to_owned()), "{:?}", kernels(&compiled));
}

#[test]
fn steps_are_measured_in_place() {
    let engine = engine();
    register_twin(&engine);
    let compiled = CompiledModel::new(&engine, linear(), &Options::default()).unwrap();
    let options = lz_engine::tune::TuneOptions {
        max_samples: 2,
        min_samples: 1,
        turn_time: Duration::ZERO,
        sample_time: Duration::ZERO,
        ..Default::default()
    };
    let shapes = [InputShape { shape: vec![2, 4], dtype: DType::F32 }];
    let tuned = compiled.tune(&shapes, &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let linear = tuned.iter().find(|step| step.operation == "mlp.linear").unwrap();
    let measured = linear.result.kernels.iter().filter(|(_, outcome)| outcome.state() == "measured");
    assert_eq!(measured.count(), 2, "{linear:?}");
}

#[test]
fn explanation_marks_steps_that_run_at_the_same_time() {
    let mut build = Builder::new();
    let x = build.input("x", vec![Dim::from(256), Dim::from(128)], DType::F32);
    let (a, b) = (build.unary("tanh", x).unwrap(), build.unary("exp", x).unwrap());
    let sum = build.binary("add", a, b).unwrap();
    build.output("sum", sum);
    let compiled = CompiledModel::new(&engine(), build.finish().unwrap(), &Options::default()).unwrap();
    let shapes = [InputShape { shape: vec![256, 128], dtype: DType::F32 }];
    let explain = |threads| lz_pool::with_threads(threads, || compiled.explain(&shapes).unwrap());
    assert!(explain(2).contains("the next 2 steps run at the same time\n"), "{}", explain(2));
    assert!(!explain(1).contains("at the same time"), "{}", explain(1));
}

/// A tensor that claims to be on a device.
#[derive(Debug)]
struct OnDevice(Tensor);

impl crate::graph::SharedMemory for OnDevice {
    fn view(&self) -> TensorView<'_> {
        let device = lz_core::tensor::Device { platform: lz_core::device::Platform::Cuda, index: 0 };
        let layout = lz_core::tensor::Layout { device, ..*self.0.view().layout() };
        // SAFETY: the memory is the tensor's.
        unsafe { TensorView::from_raw(self.0.view().as_ptr(), layout) }
    }
}

#[test]
fn constants_of_a_device_are_saved_from_copies() {
    let weight = || Tensor::from_slice(&[1.0f32, 0.0, -2.0, 0.5], &[1, 4]).unwrap();
    let mut build = Builder::new();
    let x = build.input("x", vec![Dim::from(2), Dim::from(4)], DType::F32);
    let shared = ConstantData::Shared(std::sync::Arc::new(OnDevice(weight())));
    let constant = build.constant("weight", shared);
    let y = build.linear(x, constant, None).unwrap();
    build.output("y", y);
    let options = Options { optimize: false, ..Options::default() };
    let compiled = CompiledModel::new(&engine(), build.finish().unwrap(), &options).unwrap();
    let index = compiled.graph().constants.iter().position(|one| one.name == "weight").unwrap();
    let folder = Folder::new();
    let path = folder.file("model.lz");
    let error = compiled.save(&path).unwrap_err().to_string();
    assert!(error.contains("`weight` is on cuda:0"), "{error}");
    let owned = |tensor| HashMap::from([(index, ConstantData::Owned(std::sync::Arc::new(tensor)))]);
    let other = Tensor::from_slice(&[1.0f32; 4], &[4]).unwrap();
    let error = compiled.save_with(&path, owned(other), &[]).unwrap_err().to_string();
    assert!(error.contains("expected float32[1, 4]"), "{error}");
    compiled.save_with(&path, owned(weight()), &[]).unwrap();
    let loaded = CompiledModel::load(&engine(), &path, &LoadOptions::default()).unwrap();
    let found = loaded.run(input(&[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 2.0])).unwrap();
    assert_eq!(found[0].view().as_slice::<f32>(), Some(&[-3.0, 1.0][..]));
}
