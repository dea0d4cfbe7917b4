//! Shadow verification: a kernel that is wrong once in a while is found, quarantined for its bucket and reported.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::{
    Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run, Tensor, dynamic,
};
use lz_engine::Engine;
use lz_engine::dynamic::Output;
use lz_engine::policy::layer::SettingInput;
use lz_engine::verify::{self, Reproducer, Rerun};
use lz_test_support::Folder;

const SCHEMA: &str = r#"
operation: demo.scale
version: 1
summary: Scales rows.
doc: "output = x * factor"
axes:
  rows: { role: batch,   select: { bucket: [4, 64] }, fuzz: 1..9 }
  size: { role: feature, select: exact,               fuzz: [4, 8] }
types:
  T: [f32, f16]
inputs:
  x: { shape: [rows, size], dtype: T, doc: "The rows." }
params:
  factor: { type: f32, default: 2, doc: "The factor." }
  order:  { type: enum, values: [up, down], default: up, doc: "Has no effect." }
outputs:
  output: { shape: [rows, size], dtype: T }
semantics: { nan: propagate }
equivalence:
  close: { f32: [1e-5, 1e-5], f16: [1e-3, 1e-3] }
workloads:
  small: { rows: 4, size: 4, T: f32 }
"#;

fn scale() -> &'static OperationInfo {
    static OPERATION: std::sync::OnceLock<&'static OperationInfo> = std::sync::OnceLock::new();
    OPERATION.get_or_init(|| dynamic::read_operation("demo/scale.yaml", SCHEMA).expect("a valid schema"))
}

/// Scales, and is wrong by one in every `wrong_every`-th call; 0 for never.
struct Scale {
    wrong_every: u64,
    calls: Arc<AtomicU64>,
}

impl Kernel for Scale {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        _: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let is_wrong = self.wrong_every > 0 && call.is_multiple_of(self.wrong_every);
        let [Arg::Tensor(x), Arg::Value(lz_core::expr::Value::Float(factor)), ..] = args else {
            return Err(KernelError::failed("unexpected arguments"));
        };
        let [OutArg::Tensor(output)] = outputs else { return Err(KernelError::failed("unexpected outputs")) };
        for index in lz_core::tensor::Indices::new(x.shape()) {
            output.set(&index, x.at(&index) * *factor + f64::from(u8::from(is_wrong)));
        }
        Ok(())
    }
}

fn kernel(id: &str, backend: &str, wrong_every: u64, calls: &Arc<AtomicU64>) -> KernelEntry {
    let mut spec = KernelSpec::new(id, "demo.scale", backend, "1.0", Platform::Cpu);
    spec.reference = backend == "reference";
    spec.priority = if spec.reference { 0 } else { 90 };
    KernelEntry::new(spec, Scale { wrong_every, calls: Arc::clone(calls) }).of(scale())
}

struct Setup {
    engine: Engine,
    folder: Folder,
    /// Calls of the kernel under test and of the reference.
    calls: Arc<AtomicU64>,
    reference_calls: Arc<AtomicU64>,
}

/// An engine with a kernel that is wrong in every n-th call, and a reference.
fn setup(wrong_every: u64, settings: &[(&str, SettingInput)]) -> Setup {
    let folder = Folder::new();
    let engine = Engine::new();
    verify::install(&engine);
    let (calls, reference_calls) = (Arc::default(), Arc::default());
    engine
        .register([
            kernel("fast.scale", "fast", wrong_every, &calls),
            kernel("reference.scale", "reference", 0, &reference_calls),
        ])
        .expect("valid kernels");
    let directory = ("verify_directory", SettingInput::Text(folder.path().display().to_string()));
    let all = settings.iter().cloned().chain([directory]).map(|(key, value)| (key.to_owned(), value));
    engine.configure(all).expect("valid settings");
    Setup { engine, folder, calls, reference_calls }
}

fn text(value: &str) -> SettingInput {
    SettingInput::Text(value.to_owned())
}

/// Calls the operation with this many rows, and returns the first element of the result.
fn call(engine: &Engine, rows: i64) -> f64 {
    call_with(engine, &Tensor::from_vec(vec![3.0f32; rows as usize * 4], &[rows, 4]).expect("a tensor"))
}

fn call_with(engine: &Engine, x: &Tensor) -> f64 {
    let mut args = [Arg::Tensor(x.view()), Arg::Absent, Arg::Absent];
    let outputs = lz_engine::dynamic::call(engine, scale(), &mut args).expect("the call succeeds");
    match &outputs[..] {
        [Output::Tensor(output)] => output.view().at(&[0, 0]),
        other => panic!("unexpected outputs {other:?}"),
    }
}

fn wait(engine: &Engine) {
    assert!(engine.wait_for_verification(Duration::from_secs(60)), "verification ends");
}

fn reproducers(folder: &Folder) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder.path()).expect("the folder is readable");
    files.map(|file| file.expect("readable").path()).collect()
}

#[test]
fn a_wrong_kernel_is_quarantined_for_its_bucket_and_reproduced() {
    let setup = setup(7, &[("verify", text("all"))]);
    let engine = &setup.engine;
    for _ in 0..20 {
        call(engine, 2);
        wait(engine);
    }
    let metrics = engine.metrics();
    assert_eq!(metrics.verifications.agreed, 6, "six right results, then a wrong one");
    assert_eq!((metrics.verifications.mismatched, metrics.verifications.dropped), (1, 0));
    let [mismatch] = &metrics.verification_mismatches[..] else { panic!("one kernel is wrong") };
    assert_eq!((mismatch.kernel.as_str(), mismatch.count), ("fast.scale", 1));
    assert_eq!(setup.calls.load(Ordering::Relaxed), 7, "not called after the wrong result");
    assert!(
        engine
            .metrics_text()
            .contains("lz_verification_mismatches_total{operation=\"demo.scale\",kernel=\"fast.scale\"} 1")
    );

    let [circuit] = &engine.circuits()[..] else { panic!("one circuit has a record") };
    assert!(circuit.quarantined && circuit.refuses() && circuit.retry_in.is_none(), "{circuit:?}");
    assert!(circuit.last_error.contains("output[0, 0] is 7.0, but should be 6.0"), "{}", circuit.last_error);
    assert_eq!(call(engine, 2), 6.0);
    assert_eq!(setup.calls.load(Ordering::Relaxed), 7);
    // Another bucket still uses it.
    assert_eq!(call(engine, 32), 6.0);
    assert_eq!(setup.calls.load(Ordering::Relaxed), 8);

    let [file] = &reproducers(&setup.folder)[..] else { panic!("one reproducer is written") };
    let reproducer = Reproducer::load(file).expect("a reproducer");
    assert_eq!((reproducer.operation(), reproducer.kernel().id.as_str()), ("demo.scale", "fast.scale"));
    let replay = engine.replay(&reproducer).expect("it can be replayed");
    assert!(!replay.contract_changed);
    assert!(
        replay.reference_difference.is_some_and(|text| text.contains("is 7.0")),
        "the recorded result is wrong"
    );
    assert_eq!(replay.kernel_now, Rerun::Agrees, "it is wrong only sometimes");
    engine.reset_kernel(Some("fast.scale")).expect("the quarantine is lifted");
    assert!(engine.circuits().is_empty());
}

#[test]
fn a_replay_reports_a_kernel_that_is_always_wrong() {
    let setup = setup(1, &[("verify", text("all"))]);
    assert_eq!(call(&setup.engine, 2), 7.0);
    wait(&setup.engine);
    let reproducer = Reproducer::load(&reproducers(&setup.folder)[0]).expect("a reproducer");
    let replay = setup.engine.replay(&reproducer).expect("it can be replayed");
    assert!(matches!(&replay.kernel_now, Rerun::Differs(text) if text.contains("7.0")), "{replay:?}");
    // Another process has neither the kernel nor the operation.
    let replay = Engine::new().replay(&reproducer).expect("the schema is in the file");
    assert_eq!(replay.kernel_now, Rerun::NotRegistered);
    assert_eq!(replay.reference_difference, None, "there is no reference");
}

#[test]
fn verification_is_off_by_default() {
    let setup = setup(1, &[]);
    for _ in 0..100 {
        assert_eq!(call(&setup.engine, 2), 7.0);
    }
    wait(&setup.engine);
    assert_eq!(setup.reference_calls.load(Ordering::Relaxed), 0);
    assert_eq!(setup.engine.metrics().verifications, Default::default());
    assert!(reproducers(&setup.folder).is_empty());
}

#[test]
fn a_share_of_cache_hits_is_verified() {
    let settings = [("verify", text("sampled")), ("verify_share", SettingInput::Float(0.01))];
    let setup = setup(0, &settings);
    // Several shapes in a loop: each of them is sampled.
    let tensors = [2, 5, 70].map(|rows| {
        let mut x = Tensor::zeros(&[rows, 4], DType::F32).expect("a tensor");
        x.view_mut().as_slice_mut::<f32>().expect("dense").fill(3.0);
        x
    });
    for _ in 0..5000 {
        for x in &tensors {
            assert_eq!(call_with(&setup.engine, x), 6.0);
        }
        wait(&setup.engine);
    }
    let counts = setup.engine.metrics().verifications;
    assert!((100..250).contains(&counts.agreed), "about 150 of 15 000 calls are verified: {counts:?}");
    assert_eq!(setup.reference_calls.load(Ordering::Relaxed), counts.agreed);
}

#[test]
fn calls_beyond_the_memory_limit_are_dropped_and_counted() {
    let settings = [("verify", text("all")), ("verify_memory_mb", SettingInput::Int(1))];
    let setup = setup(0, &settings);
    call(&setup.engine, 100_000);
    wait(&setup.engine);
    let counts = setup.engine.metrics().verifications;
    assert_eq!((counts.dropped, counts.agreed), (1, 0));
}

#[test]
fn the_reference_decides_which_of_two_kernels_is_wrong() {
    let setup = setup(0, &[("verify", text("all"))]);
    let wrong: Arc<AtomicU64> = Arc::default();
    let mut second = kernel("second.scale", "second", 1, &wrong);
    Arc::make_mut(&mut second.spec).priority = 50;
    setup.engine.register([second]).expect("a valid kernel");
    assert_eq!(call(&setup.engine, 2), 6.0);
    wait(&setup.engine);
    let [circuit] = &setup.engine.circuits()[..] else { panic!("one circuit has a record") };
    assert_eq!(circuit.name, "second.scale", "the kernel that was called is right");
    assert_eq!((wrong.load(Ordering::Relaxed), setup.reference_calls.load(Ordering::Relaxed)), (1, 1));
    let reproducer = Reproducer::load(&reproducers(&setup.folder)[0]).expect("a reproducer");
    assert_eq!(reproducer.kernel().id, "second.scale");
}

#[test]
fn plan_handles_are_verified() {
    let setup = setup(0, &[("verify", text("all"))]);
    let x = Tensor::from_vec(vec![3.0f32; 8], &[2, 4]).expect("a tensor");
    let mut output = Tensor::zeros(&[2, 4], DType::F32).expect("a tensor");
    let value = lz_core::expr::Value::Float(2.0);
    let order = Arg::Value(lz_core::expr::Value::Enum(0));
    let mut args = [Arg::Tensor(x.view()), Arg::Value(value), order];
    let schema = scale().schema();
    let bound = lz_core::check::check_call(schema, &args, None).expect("a valid call");
    let context = dynamic::context(schema, &bound, &args, None).expect("a context");
    let pinned = setup.engine.pin(scale(), &context, &mut |_| Ok(())).expect("a kernel");
    let mut outputs = [OutArg::Tensor(output.view_mut())];
    let mut run_one = |entry: &KernelEntry, run: &mut Run<'_>| entry.kernel.run(&mut args, &mut outputs, run);
    setup.engine.run_pinned(&pinned, &context, &mut run_one).expect("the call succeeds");
    wait(&setup.engine);
    assert_eq!(setup.engine.metrics().verifications.agreed, 1);
}

#[test]
fn a_damaged_reproducer_is_refused() {
    let folder = Folder::new();
    for (name, bytes) in [("empty", &b""[..]), ("text", b"no reproducer at all"), ("length", &[0xff; 64])] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let error = Reproducer::load(&path).expect_err("refused");
        assert!(error.to_string().contains(name), "{error}");
    }
}
