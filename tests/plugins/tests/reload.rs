//! Plugins that are replaced while calls run, and kernel versions side by side.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lz_core::{Error, ReasonCode, TensorView};
use lz_engine::Engine;
use lz_engine::policy::layer::SettingInput;
use lz_engine::readiness::Check;
use lz_ops::{NORM_RMS, NormRms, norm_rms};
use lz_plugin::loader::{self, Install, LoadedPlugin, Trust};
use support::{compile, folder, worker_program};

const KERNEL: &str = "versioned.norm.rms";
const SECOND: &str = "versioned.norm.rms@2.0";

/// An engine with the reference kernels of all operations.
fn reference_engine() -> Engine {
    Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

/// A copy of a compiled plugin that no other test loads.
fn plugin(fault: &str, test: &str) -> PathBuf {
    let copy = folder().join(format!("{test}-{fault}-{}.so", std::process::id()));
    fs::copy(compile("versioned.c", fault), &copy).unwrap();
    copy
}

fn install(engine: &Engine, path: &Path, install: Install) -> Result<LoadedPlugin, Error> {
    // SAFETY: the plugins of this repository.
    unsafe { loader::load_as(engine, path, &Trust::directories([folder()]), install) }
}

fn replace(engine: &Engine, path: &Path) -> Result<LoadedPlugin, Error> {
    install(engine, path, Install::Replace(Duration::from_secs(10)))
}

fn call(engine: &Engine) -> Result<Vec<f32>, Error> {
    let x: Vec<f32> = (0..24).map(|at| at as f32 - 7.5).collect();
    let args = NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap()).eps(1e-5);
    Ok(norm_rms(engine, args)?.output.view().as_slice::<f32>().unwrap().to_vec())
}

fn is_right(found: &[f32]) -> bool {
    let expected = call(&reference_engine()).unwrap();
    found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-4)
}

fn is_mapped(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    fs::read_to_string("/proc/self/maps").unwrap().contains(name)
}

fn version(engine: &Engine) -> String {
    engine.registry().kernel(KERNEL).unwrap().spec.version.clone()
}

fn set(engine: &Engine, key: &str, value: SettingInput) {
    engine.configure([(key.to_owned(), value)]).unwrap();
}

fn calls_by_kernel(engine: &Engine) -> BTreeMap<String, u64> {
    let calls = engine.metrics().calls;
    calls.into_iter().filter(|one| one.operation == "norm.rms").map(|one| (one.kernel, one.count)).collect()
}

fn explained(engine: &Engine) -> String {
    let x = vec![1.0f32; 24];
    let args = NormRms::new(TensorView::from_slice(&x, &[3, 8]).unwrap()).eps(1e-5);
    engine.explain(&NORM_RMS, &args.check().unwrap().context()).to_string()
}

#[test]
fn a_plugin_is_replaced_under_load_and_the_old_library_is_unloaded() {
    let engine = reference_engine();
    let (first, second) = (plugin("FIRST", "load"), plugin("SECOND", "load"));
    install(&engine, &first, Install::New).unwrap();
    assert!(is_mapped(&first));
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let expected = call(&reference_engine()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let found = call(&engine).unwrap();
                    let is_right = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4);
                    assert!(is_right, "{found:?}");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let some = |more: usize| {
            let target = calls.load(Ordering::Relaxed) + more;
            let end = Instant::now() + Duration::from_secs(60);
            while calls.load(Ordering::Relaxed) < target && Instant::now() < end {
                std::thread::yield_now();
            }
        };
        some(200);
        let loaded = replace(&engine, &second).unwrap_or_else(|error| panic!("{error}"));
        let replacement = loaded.replacement.unwrap();
        assert_eq!(loaded.version, "2.0");
        assert!(replacement.is_drained, "every thread makes calls");
        assert!(replacement.trial.compared > 0 && replacement.trial.untried.is_empty(), "{replacement:?}");
        assert!(replacement.replaced.contains(&(KERNEL.to_owned(), "1.0".to_owned())));
        some(200);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(version(&engine), "2.0");
    assert!(is_mapped(&second) && !is_mapped(&first), "the old library is unloaded");
    assert_eq!(engine.fallbacks(), 0, "no call failed");
    engine.unregister_backend("versioned");
}

#[test]
fn a_bad_plugin_changes_nothing_and_says_why() {
    let engine = reference_engine();
    install(&engine, &plugin("FIRST", "bad"), Install::New).unwrap();
    let expected = call(&engine).unwrap();
    let text = folder().join(format!("text-{}.so", std::process::id()));
    fs::write(&text, "not a library").unwrap();
    let bad = [
        (plugin("ABI", "bad"), ReasonCode::PluginVersionMismatch, "ABI version"),
        (plugin("NEVER", "bad"), ReasonCode::PluginInitFailed, "requested initialization failure"),
        (plugin("WRONG", "bad"), ReasonCode::VersionRejected, "but should be"),
        (plugin("FAILS", "bad"), ReasonCode::VersionRejected, "requested test failure"),
        (text, ReasonCode::PluginLoadFailed, ""),
        (folder().join("absent.so"), ReasonCode::PluginPermission, "absent.so"),
    ];
    for (path, code, message) in bad {
        let (registry, generation) = (engine.registry(), engine.generation());
        let error = replace(&engine, &path).unwrap_err();
        assert!(error.has(code) && error.to_string().contains(message), "{}: {error}", path.display());
        assert!(std::sync::Arc::ptr_eq(&registry, &engine.registry()), "{}", path.display());
        assert_eq!(engine.generation(), generation, "{}", path.display());
        assert_eq!((version(&engine).as_str(), call(&engine).unwrap()), ("1.0", expected.clone()));
        assert!(!is_mapped(&path), "{} is not kept loaded", path.display());
        let error = install(&engine, &path, Install::Alongside).unwrap_err();
        assert!(error.has(code), "{}: {error}", path.display());
        assert_eq!(engine.registry().kernels().filter(|entry| entry.version_of.is_some()).count(), 0);
    }
}

#[test]
fn a_file_that_is_loaded_is_not_loaded_again() {
    let engine = reference_engine();
    let path = plugin("FIRST", "again");
    install(&engine, &path, Install::New).unwrap();
    let error = replace(&engine, &path).unwrap_err();
    assert!(error.to_string().contains("loaded already"), "{error}");
    // The same inode with other content. The code that runs is not touched: only the end of the file grows.
    use std::io::Write as _;
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    let error = replace(&engine, &path).unwrap_err();
    assert!(error.to_string().contains("rename"), "{error}");
    // A file of another inode with the same name.
    fs::rename(plugin("SECOND", "again"), &path).unwrap();
    assert_eq!(replace(&engine, &path).unwrap().version, "2.0");
}

#[test]
fn an_idle_thread_keeps_the_old_library_until_its_next_call() {
    let engine = reference_engine();
    let first = plugin("FIRST", "idle");
    install(&engine, &first, Install::New).unwrap();
    let (next, wake) = std::sync::mpsc::channel::<()>();
    let (done, called) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let engine = &engine;
        scope.spawn(move || {
            call(engine).unwrap();
            done.send(()).unwrap();
            wake.recv().unwrap();
            call(engine).unwrap();
            done.send(()).unwrap();
            wake.recv().ok();
        });
        called.recv().unwrap();
        let install_now = Install::Replace(Duration::from_millis(50));
        let loaded = install(engine, &plugin("SECOND", "idle"), install_now).unwrap();
        assert!(!loaded.replacement.unwrap().is_drained && is_mapped(&first));
        next.send(()).unwrap();
        called.recv().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while is_mapped(&first) && Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(!is_mapped(&first));
        drop(next);
    });
}

#[test]
fn versions_share_calls_by_percentage_rule_and_lock() {
    let engine = reference_engine();
    install(&engine, &plugin("FIRST", "share"), Install::New).unwrap();
    let loaded = install(&engine, &plugin("SECOND", "share"), Install::Alongside).unwrap();
    assert_eq!(loaded.kernels, [SECOND, "versioned.relu@2.0"]);
    (0..10).for_each(|_| assert!(is_right(&call(&engine).unwrap())));
    assert_eq!(calls_by_kernel(&engine), BTreeMap::from([(KERNEL.to_owned(), 10)]), "not in use yet");
    assert!(explained(&engine).contains("VERSION_INACTIVE"), "{}", explained(&engine));

    set(&engine, "rollout.shares", SettingInput::Text(format!("{SECOND}: 25")));
    (0..200).for_each(|_| assert!(is_right(&call(&engine).unwrap())));
    let expected = BTreeMap::from([(KERNEL.to_owned(), 160), (SECOND.to_owned(), 50)]);
    assert_eq!(calls_by_kernel(&engine), expected);
    let text = explained(&engine);
    assert!(
        text.contains("version versioned.norm.rms@2.0 gets 25 % of the calls of versioned.norm.rms"),
        "{text}"
    );
    let Check { ok, detail, .. } =
        engine.readiness(&[lz_core::device::Platform::Cpu]).check("versions").unwrap().clone();
    assert!(ok && detail.contains("gets 25 %"), "{detail}");
    let error = engine.promote_version("versioned.norm.rms@2.1").unwrap_err();
    assert!(error.to_string().contains("did you mean `versioned.norm.rms@2.0`?"), "{error}");

    set(&engine, "rollout.shares", SettingInput::Text(format!("{SECOND}: 100")));
    let before = calls_by_kernel(&engine)[KERNEL];
    (0..20).for_each(|_| assert!(is_right(&call(&engine).unwrap())));
    assert_eq!(calls_by_kernel(&engine)[KERNEL], before, "the other version has all calls");

    set(&engine, "rollout.shares", SettingInput::Text(format!("{SECOND}: 0")));
    engine.lock("norm.rms", SECOND).unwrap();
    let before = calls_by_kernel(&engine)[SECOND];
    call(&engine).unwrap();
    assert_eq!(calls_by_kernel(&engine)[SECOND], before + 1, "a lock names the version");
    engine.lock("norm.rms", "versioned.norm.rms@1.0").unwrap();
    call(&engine).unwrap();
    assert_eq!(calls_by_kernel(&engine)[SECOND], before + 1, "a lock names the stable version");
    engine.unlock("norm.rms").unwrap();

    let rule =
        "rules:\n  - operation: norm.rms\n    condition: hidden == 8\n    prefer: [versioned.norm.rms@2.0]\n";
    engine.load_config_text("rule.yaml", rule).unwrap();
    call(&engine).unwrap();
    assert_eq!(calls_by_kernel(&engine)[SECOND], before + 2, "a rule prefers the version");
    engine.load_config_text("rule.yaml", &rule.replace("== 8", "== 9")).unwrap();
    call(&engine).unwrap();
    assert_eq!(calls_by_kernel(&engine)[SECOND], before + 2, "the rule does not apply");
}

/// Starts a canary of 50 % and makes calls; every result must be right, whatever the canary does.
fn canary(fault: &str, test: &str) -> Engine {
    let engine = reference_engine();
    install(&engine, &plugin("FIRST", test), Install::New).unwrap();
    install(&engine, &plugin(fault, test), Install::Alongside).unwrap_or_else(|error| panic!("{error}"));
    set(&engine, "rollout.canary_calls", SettingInput::Int(20));
    set(&engine, "rollout.canary_max_slowdown_percent", SettingInput::Float(1000.0));
    set(&engine, "rollout.canaries", SettingInput::Text(format!("{SECOND}: 50")));
    for _ in 0..100 {
        let found = call(&engine).unwrap();
        assert!(is_right(&found), "{found:?}");
    }
    engine
}

fn outcomes(engine: &Engine) -> BTreeMap<&'static str, u64> {
    let all = engine.metrics().canaries.into_iter();
    all.filter(|one| one.kernel == SECOND).map(|one| (one.outcome, one.count)).collect()
}

#[test]
fn a_good_canary_is_compared_and_promoted() {
    let engine = canary("SECOND", "good");
    let report = engine.canaries().pop().unwrap();
    assert_eq!(
        (report.kernel.as_str(), report.state, report.percent),
        (SECOND, "promoted", 100),
        "{report:?}"
    );
    assert_eq!((report.totals.compared, report.totals.mismatches), (20, 0), "{report:?}");
    assert!(report.median_ns > 0 && report.stable_median_ns > 0);
    assert_eq!(outcomes(&engine), BTreeMap::from([("matched", 20)]));
    assert!(
        engine
            .metrics_text()
            .contains(&format!("lz_canary_calls_total{{kernel=\"{SECOND}\",outcome=\"matched\"}} 20"))
    );
    assert!(
        explained(&engine).contains("100 % of the calls of versioned.norm.rms (promoted"),
        "{}",
        explained(&engine)
    );
    let before = calls_by_kernel(&engine)[KERNEL];
    call(&engine).unwrap();
    assert_eq!(calls_by_kernel(&engine)[KERNEL], before);
    engine.roll_back_version(SECOND).unwrap();
    call(&engine).unwrap();
    assert_eq!(calls_by_kernel(&engine)[KERNEL], before + 1, "rolled back by a call");
}

#[test]
fn a_canary_with_wrong_results_is_rolled_back() {
    let engine = canary("SLIGHTLY_WRONG", "wrong");
    let report = engine.canaries().pop().unwrap();
    assert_eq!((report.state, report.percent, report.totals.mismatches), ("rolled_back", 0, 1), "{report:?}");
    assert!(report.why.contains("output[0, 0] is"), "{report:?}");
    assert_eq!(outcomes(&engine), BTreeMap::from([("mismatched", 1)]));
}

#[test]
fn mismatches_up_to_the_limit_are_tolerated() {
    let engine = reference_engine();
    install(&engine, &plugin("FIRST", "limit"), Install::New).unwrap();
    install(&engine, &plugin("SLIGHTLY_WRONG", "limit"), Install::Alongside).unwrap();
    set(&engine, "rollout.canary_max_mismatches", SettingInput::Int(3));
    set(&engine, "rollout.canaries", SettingInput::Text(format!("{SECOND}: 50")));
    let mismatches_when_rolled_back = (0..40).find_map(|_| {
        assert!(is_right(&call(&engine).unwrap()));
        let report = engine.canaries().pop().unwrap();
        (report.state == "rolled_back").then_some(report.totals.mismatches)
    });
    assert_eq!(mismatches_when_rolled_back, Some(4));
}

#[test]
fn a_canary_that_fails_is_rolled_back() {
    let engine = canary("FAILS_LATER", "fails");
    let report = engine.canaries().pop().unwrap();
    assert_eq!((report.state, report.totals.errors), ("rolled_back", 1), "{report:?}");
    assert!(report.why.contains("requested test failure"), "{report:?}");
}

#[test]
fn a_slow_canary_is_rolled_back() {
    let engine = reference_engine();
    install(&engine, &plugin("FIRST", "slow"), Install::New).unwrap();
    install(&engine, &plugin("SLOW", "slow"), Install::Alongside).unwrap();
    set(&engine, "rollout.canary_calls", SettingInput::Int(10));
    set(&engine, "rollout.canaries", SettingInput::Text(format!("{SECOND}: 50")));
    (0..40).for_each(|_| assert!(is_right(&call(&engine).unwrap())));
    let report = engine.canaries().pop().unwrap();
    assert_eq!((report.state, report.totals.mismatches), ("rolled_back", 0), "{report:?}");
    assert!(report.why.contains("median latency"), "{report:?}");
}

#[test]
fn an_isolated_plugin_is_replaced_by_a_new_worker() {
    let engine = reference_engine();
    set(&engine, "plugins.directories", SettingInput::Texts(vec![folder().display().to_string()]));
    set(&engine, "backend_isolation", SettingInput::Text("subprocess".to_owned()));
    set(&engine, "worker.program", SettingInput::Text(worker_program().display().to_string()));
    let load = |fault: &str, install: Install| {
        // SAFETY: the plugins of this repository.
        unsafe { lz_worker::plugins::load_as(&engine, &plugin(fault, "isolated"), install) }
    };
    load("FIRST", Install::New).unwrap();
    assert!(is_right(&call(&engine).unwrap()));
    let error = load("WRONG", Install::Replace(Duration::ZERO)).unwrap_err();
    assert!(error.has(ReasonCode::VersionRejected), "{error}");
    assert_eq!(version(&engine), "1.0");
    let loaded = load("SECOND", Install::Replace(Duration::from_secs(10))).unwrap();
    assert!(loaded.runs_in.is_some() && loaded.replacement.unwrap().is_drained);
    assert!(is_right(&call(&engine).unwrap()));
    assert_eq!(version(&engine), "2.0");
}
