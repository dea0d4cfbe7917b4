//! Every check of readiness passes on a plain engine, and fails when its part is broken.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::engine_support::{Does, Shape, attend, engine, entry, failing, run, spec};
use crate::every_setting::Judged;
use lz_core::device::{DeviceSpec, Platform};
use lz_core::kernel::{CompileRequest, Compiled};
use lz_core::{KernelEntry, KernelError, Reason, ReasonCode};
use lz_engine::Engine;
use lz_engine::evidence::MemoryProbe;
use lz_engine::health::DegradationLevel;
use lz_engine::jit::{JitConfig, JitQueue};
use lz_engine::log::{Queue, Record, Severity, Sink};
use lz_engine::policy::layer::SettingInput;
use lz_engine::solver::{Problem, Work};
use lz_test_support::Folder;

const HOST: &[Platform] = &[Platform::Cpu];

/// The checks that fail. The log queue belongs to the process: what another test does to it is left out.
fn failures(engine: &Engine, platforms: &[Platform], name: &str) -> Vec<&'static str> {
    let checks = engine.readiness(platforms).checks.into_iter();
    checks
        .filter(|one| !one.ok && (one.name != "telemetry" || name == "telemetry"))
        .map(|one| one.name)
        .collect()
}

fn ready_engine() -> Engine {
    let engine = engine([spec("a.x"), spec("reference.x")]);
    assert!(failures(&engine, HOST, "").is_empty(), "{:?}", engine.readiness(HOST));
    engine
}

/// The detail of the only check that fails.
fn failed(engine: &Engine, platforms: &[Platform], name: &str) -> String {
    let readiness = engine.readiness(platforms);
    assert!(!readiness.ready, "{readiness:?}");
    assert_eq!(failures(engine, platforms, name), [name], "{readiness:?}");
    readiness.check(name).unwrap().detail.clone()
}

fn set(engine: &Engine, key: &str, value: SettingInput) {
    engine.configure([(key.to_owned(), value)]).unwrap();
}

#[test]
fn operations_without_a_kernel_fail() {
    let engine = Engine::new();
    engine.register_operations([attend()]).unwrap();
    assert_eq!(failed(&engine, HOST, "kernels"), "no kernel on cpu: demo.attend");
}

#[test]
fn a_pending_judgment_fails_until_it_is_settled_and_announced() {
    let engine = ready_engine();
    let judged = entry(spec("judged.x").priority(90)).judged_by(Judged::default());
    engine.register([judged]).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "a.x");
    assert_eq!(failed(&engine, HOST, "handles"), "a handle is not judged");
    // A lock leaves no other kernel: the call waits for the judgment.
    engine.lock("demo.attend", "judged.x").unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "judged.x");
    assert!(engine.readiness(HOST).check("handles").unwrap().ok);
    // The earlier decision was made under an older snapshot.
    let before = engine.generation();
    lz_core::judgment::announce();
    assert!(engine.generation() > before);
    // Engines without such kernels keep their decisions.
    let plain = ready_engine();
    let before = plain.generation();
    lz_core::judgment::announce();
    assert_eq!(plain.generation(), before);
}

#[test]
fn a_degraded_engine_fails() {
    let engine = ready_engine();
    while engine.health().level() == DegradationLevel::Full {
        engine.health().record_engine_fault("a test");
    }
    assert_ne!(failed(&engine, HOST, "health"), "Full");
}

#[test]
fn a_disabled_backend_fails() {
    let engine = ready_engine();
    engine.disable_backend("a", Reason::new(ReasonCode::EnvironmentFailed).message("no driver"));
    assert!(failed(&engine, HOST, "backends").contains("no driver"));
}

#[test]
fn an_open_circuit_fails() {
    let engine = ready_engine();
    engine.register([failing(spec("bad.x").priority(90), || Err(KernelError::failed("no")))]).unwrap();
    (0..8).for_each(|_| drop(run(&engine, &Shape::default()).unwrap()));
    assert!(failed(&engine, HOST, "circuits").starts_with("1 open of"));
}

#[test]
fn a_stale_dispatch_table_fails() {
    let engine = ready_engine();
    let works = vec![Work::new(attend(), Shape::default().context()).range("seq", 1..=4096)];
    let problem = Problem { model_id: "demo".to_owned(), works, ..Problem::default() };
    let table = engine.solve(&problem, &mut |_| ControlFlow::Continue(())).unwrap().text;
    engine.use_dispatch_table("demo.json", &table).unwrap();
    assert_eq!(engine.readiness(HOST).check("dispatch_table").unwrap().detail, "1 loaded");
    engine.register([entry(spec("new.x"))]).unwrap();
    let detail = failed(&engine, HOST, "dispatch_table");
    assert!(detail.starts_with("demo.json: ") && detail.contains("TABLE_CAPABILITIES_MISMATCH"), "{detail}");
}

#[test]
fn failed_compilations_and_an_invalid_manifest_fail() {
    let jit = |engine: &Engine| {
        let mut slow = spec("jit.x").priority(90);
        slow.jit = true;
        let compile = |_: &CompileRequest<'_>| -> Result<Compiled, KernelError> {
            Err(KernelError::failed("no compiler"))
        };
        let entry = KernelEntry::new(slow, Does(Box::new(|| Ok(())))).of(attend()).compiled_by(compile);
        engine.register([entry]).unwrap();
    };
    let engine = ready_engine();
    jit(&engine);
    let queue = JitQueue::start(&engine, "demo", JitConfig::default());
    assert!(engine.readiness(HOST).check("compilation").unwrap().ok);
    run(&engine, &Shape::default()).unwrap();
    queue.wait_until_idle(std::time::Duration::from_secs(60));
    let readiness = engine.readiness(HOST);
    let check = readiness.check("compilation").unwrap();
    assert!(!check.ok && check.detail.contains("1 kernels could not be compiled"), "{check:?}");
    queue.stop();

    let engine = ready_engine();
    let folder = Folder::new();
    folder.write("manifest.json", "not a manifest");
    let config = JitConfig { manifest: Some(folder.file("manifest.json")), ..JitConfig::default() };
    let queue = JitQueue::start(&engine, "demo", config);
    assert!(failed(&engine, HOST, "compilation").starts_with("shape manifest: "));
    queue.stop();
}

#[test]
fn strict_captures_need_graph_safe_kernels_and_a_trial() {
    let engine = ready_engine();
    let cuda = |id: &str| {
        let mut spec = spec(id);
        spec.platform = Platform::Cuda;
        spec
    };
    engine.register([entry(cuda("gpu.x"))]).unwrap();
    let platforms = [Platform::Cpu, Platform::Cuda];
    let readiness = engine.readiness(&platforms);
    let check = readiness.check("capture").unwrap();
    assert!(check.ok && check.detail.contains("demo.attend"), "only strict captures need them: {check:?}");
    set(&engine, "graph_strict_mode", SettingInput::Bool(true));
    let detail = failed(&engine, &platforms, "capture");
    assert!(detail.contains("demo.attend") && detail.contains("lz.verify_capture"), "{detail}");
    assert!(failures(&engine, HOST, "").is_empty(), "the host captures nothing");
    let mut safe = cuda("safe.x");
    safe.cuda_graph_safe = true;
    engine.register([entry(safe)]).unwrap();
    engine.mark_captured("safe.x", attend(), &Shape::default().context());
    assert!(failures(&engine, &platforms, "").is_empty());
}

#[test]
fn too_little_free_memory_fails() {
    struct Full;
    impl MemoryProbe for Full {
        fn free_bytes(&self, _: &DeviceSpec) -> Option<u64> {
            Some(5 << 20)
        }
    }
    let engine = ready_engine();
    assert!(engine.readiness(HOST).check("memory").unwrap().detail.contains("memory.probe"));
    engine.set_memory_probe(Some(Arc::new(Full)));
    let detail = failed(&engine, HOST, "memory");
    assert!(detail.contains("5 MiB free, less than memory_headroom_mb (1024)"), "{detail}");
    set(&engine, "memory_headroom_mb", SettingInput::Int(5));
    assert!(failures(&engine, HOST, "").is_empty());
}

#[test]
fn a_database_that_cannot_be_opened_fails() {
    let folder = Folder::new();
    folder.write("perf.sqlite", "this is a text and not a database of measurements");
    let path = folder.file("perf.sqlite").display().to_string();
    let builder = Engine::builder().set("perfdb.path", SettingInput::Text(path)).warn(|_| {});
    let engine = builder.operations([attend()]).open().unwrap();
    engine.register([entry(spec("a.x"))]).unwrap();
    assert!(failed(&engine, HOST, "perfdb").contains("perf.sqlite"));
}

#[test]
fn dropped_log_records_fail_until_they_are_reported() {
    let engine = ready_engine();
    let queue = Arc::new(Queue::default());
    let record = || Record {
        area: "select",
        severity: Severity::Info,
        message: String::new(),
        fields: Vec::new(),
        time: std::time::SystemTime::UNIX_EPOCH,
    };
    (0..4100).for_each(|_| queue.record(record()));
    assert!(failed(&engine, HOST, "telemetry").ends_with("log records were dropped"));
    queue.take();
    assert!(engine.readiness(HOST).check("telemetry").unwrap().ok);
}

#[test]
fn a_backend_with_kernels_of_several_versions_fails() {
    let engine = ready_engine();
    let mut other = spec("a.y");
    other.version = "2".to_owned();
    engine.register([entry(other)]).unwrap();
    assert_eq!(failed(&engine, HOST, "versions"), "backend a has kernels of the versions 1 and 2");
}
