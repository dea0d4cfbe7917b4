//! Statistics of values: measurements, decisions, rules and tables distinguish calls by them, and nothing else does.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lz_core::context::FieldKind;
use lz_core::device::Platform;
use lz_core::{Context, DType, KernelEntry, KernelError, KernelSpec, OperationInfo, ReasonCode, dynamic};
use lz_engine::Engine;
use lz_engine::health::{Clock, ManualClock};
use lz_engine::policy::layer::SettingInput;
use lz_engine::solver::{Problem, Work};
use lz_engine::tune::TuneOptions;
use lz_perfdb::unix_now;
use lz_test_support::Folder;

use crate::engine_support::Does;

const SCHEMA: &str = r#"
operation: demo.experts
version: 1
summary: Something whose speed depends on values.
doc: "output = x"
axes:
  rows: { role: batch, select: { bucket: [64, 1024] }, fuzz: 1..9 }
types:
  T: [f32]
inputs:
  x:       { shape: [rows], dtype: T }
  indices: { shape: [rows], dtype: i32, values: { between: [-1, 7] } }
params:
  scale:    { type: f32, default: 1 }
  max_load: { type: int, statistic: { of: indices, measure: max_count, bucket: [1, 16, 256] } }
outputs:
  output: { shape: [rows], dtype: T }
equivalence: { exact: true }
workloads:
  small: { rows: 4, T: f32 }
"#;

fn experts() -> &'static OperationInfo {
    static OPERATION: OnceLock<&'static OperationInfo> = OnceLock::new();
    OPERATION.get_or_init(|| {
        dynamic::read_operation("demo/experts.yaml", SCHEMA).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// A call with 64 rows; −1 is a load that is not known.
fn call(max_load: i64) -> Context {
    let mut context = Context::of(&experts().fields);
    for field in experts().fields.iter() {
        let bits = match (field.name.as_ref(), &field.kind) {
            ("rows", _) => 64,
            ("max_load", _) => max_load as u64,
            ("scale", _) => 1f64.to_bits(),
            (_, FieldKind::DType) => DType::F32 as u64,
            (_, FieldKind::Strides) => 0b111,
            _ => 0,
        };
        context.set(field.store, bits);
    }
    context
}

fn spec(id: &str) -> KernelSpec {
    let backend = id.split('.').next().unwrap_or(id);
    KernelSpec::new(id, "demo.experts", backend, "1", Platform::Cpu).priority(50)
}

/// `padded` takes as long as the busiest expert has tokens, `grouped` always the same.
struct Fixture {
    folder: Folder,
    clock: Arc<ManualClock>,
    load: Arc<AtomicI64>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture {
            folder: Folder::new(),
            clock: Arc::new(ManualClock::starting_at(unix_now())),
            load: Arc::new(AtomicI64::new(8)),
        }
    }

    fn kernels(&self) -> [KernelEntry; 2] {
        let entry = |id: &str, cost: Box<dyn Fn(i64) -> i64 + Send + Sync>| {
            let (clock, load) = (Arc::clone(&self.clock), Arc::clone(&self.load));
            let does = move || {
                clock.advance(Duration::from_micros(cost(load.load(Ordering::Relaxed)) as u64));
                Ok(())
            };
            KernelEntry::new(spec(id), Does(Box::new(does))).of(experts())
        };
        [entry("padded.x", Box::new(|load| load)), entry("grouped.x", Box::new(|_| 20))]
    }

    fn engine(&self) -> Engine {
        let path = self.folder.database().display().to_string();
        let engine = Engine::builder()
            .operations([experts()])
            .set("perfdb.path", SettingInput::Text(path))
            .set("perf_environment.use_nvml", SettingInput::Bool(false))
            .open()
            .unwrap();
        engine.register(self.kernels()).unwrap();
        engine
    }

    /// Measures calls whose values have this load, and which state `stated`.
    fn tune(&self, engine: &Engine, load: i64, stated: i64) {
        self.load.store(load, Ordering::Relaxed);
        let options = TuneOptions {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            sample_time: Duration::ZERO,
            turn_time: Duration::ZERO,
            ..TuneOptions::default()
        };
        let mut run =
            |entry: &KernelEntry, run: &mut lz_core::Run<'_>| entry.kernel.run(&mut [], &mut [], run);
        engine
            .tune(experts(), &call(stated), &options, &mut run, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    }
}

fn chosen(engine: &Engine, max_load: i64) -> String {
    engine.decide(experts(), &call(max_load)).unwrap()
}

#[test]
fn tuning_stores_measurements_by_statistic() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    fixture.tune(&engine, 8, 8);
    fixture.tune(&engine, 64, 64);
    for engine in [engine, fixture.engine()] {
        assert_eq!(chosen(&engine, 10), "padded.x", "the bucket of 8");
        assert_eq!(chosen(&engine, 200), "grouped.x", "the bucket of 64");
        assert_eq!(engine.explain(experts(), &call(10)).to_string().matches("max_load=10").count(), 1);
    }
}

#[test]
fn measurements_without_a_statistic_count_where_its_bucket_has_none() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    fixture.tune(&engine, 64, -1);
    assert_eq!(chosen(&engine, -1), "grouped.x");
    assert_eq!(chosen(&engine, 1), "grouped.x", "nothing was measured for it");
    fixture.tune(&engine, 1, 1);
    assert_eq!(chosen(&engine, 1), "padded.x");
    assert_eq!(chosen(&engine, -1), "grouped.x", "measurements of a statistic do not count without it");
    assert_eq!(chosen(&engine, 300), "grouped.x");
}

#[test]
fn rules_read_statistics_and_limits_cannot() {
    let fixture = Fixture::new();
    let folder = Folder::new();
    let config = folder.file("layerzero.yaml");
    std::fs::write(
        &config,
        "version: 1\nrules:\n  - { operation: demo.experts, condition: max_load >= 100, lock: padded.x }\n",
    )
    .unwrap();
    let engine = fixture.engine();
    engine.load_config(&config).unwrap();
    assert_eq!(chosen(&engine, 99), "grouped.x", "by name");
    assert_eq!(chosen(&engine, 100), "padded.x");
    assert_eq!(chosen(&engine, -1), "grouped.x");
    let limited = spec("limited.x").limit("max_load <= 16", ReasonCode::ParamUnsupported);
    let does = Does(Box::new(|| Ok::<(), KernelError>(())));
    let error = engine.register([KernelEntry::new(limited, does).of(experts())]).unwrap_err();
    assert!(error.to_string().contains("max_load"), "{error}");
}

#[test]
fn pinned_kernels_take_calls_with_other_statistics() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let pinned = engine.pin(experts(), &call(3), &mut |_| Ok(())).unwrap();
    let mut ran = String::new();
    engine
        .run_pinned(&pinned, &call(200), &mut |entry, _| {
            ran.clone_from(&entry.spec.id);
            Ok(())
        })
        .unwrap();
    assert_eq!(ran, pinned.entry().spec.id);
}

#[test]
fn tables_distinguish_statistics_that_they_were_made_with() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    fixture.tune(&engine, 8, 8);
    fixture.tune(&engine, 64, 64);
    fixture.tune(&engine, 64, -1);
    let solve = |work: Work| {
        let problem = Problem { model_id: "demo".to_owned(), works: vec![work], ..Problem::default() };
        engine.solve(&problem, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    // Sizes of rows up to 64 and up to 1024; no cell of the statistic.
    let without = solve(Work::new(experts(), call(-1)));
    assert_eq!(without.decided, 2);
    assert!(!without.text.contains("max_load"), "{}", without.text);
    let with = solve(Work::new(experts(), call(-1)).range("max_load", -1..=300).range("rows", 1..=64));
    assert_eq!(with.decided, 5, "unknown, up to 1, 16, 256, and 300");
    let folder = Folder::new();
    let table = folder.file("table.json");
    for (solution, small) in [(without, "grouped.x"), (with, "padded.x")] {
        std::fs::write(&table, solution.text).unwrap();
        let other = fixture.engine();
        other.set_evidence(None);
        other.load_dispatch_table(&table).unwrap();
        assert_eq!(chosen(&other, 8), small);
        assert_eq!(chosen(&other, 200), "grouped.x");
        assert_eq!(chosen(&other, -1), "grouped.x");
    }
}
