//! Background tuning: unmeasured kernels are measured outside of calls, within the budget, and only where that is wanted.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine_support::{Shape, attend, failing, run, spec};
use lz_engine::Engine;
use lz_engine::mode::{self, ModeFlag, ModeOverride};
use lz_engine::policy::layer::SettingInput;
use lz_engine::tune::BackgroundTuner;
use lz_perfdb::Filter;
use lz_test_support::Folder;

const DEADLINE: Duration = Duration::from_secs(60);

/// When each run of a kernel began and ended.
type Runs = Arc<Mutex<Vec<[Instant; 2]>>>;

/// Two kernels: the preferred one takes 300 µs, the other one 30 µs.
fn open(folder: &Folder, settings: &[(&str, SettingInput)]) -> (Engine, Runs) {
    let runs = Runs::default();
    let kernel = |id: &str, priority: u8, time: Duration| {
        let runs = Arc::clone(&runs);
        failing(spec(id).priority(priority), move || {
            let start = Instant::now();
            while start.elapsed() < time {
                std::hint::spin_loop();
            }
            runs.lock().unwrap().push([start, Instant::now()]);
            Ok(())
        })
    };
    let path = folder.database().display().to_string();
    let mut builder = Engine::builder()
        .operations([attend()])
        .set("perfdb.path", SettingInput::Text(path))
        .set("perf_environment.use_nvml", SettingInput::Bool(false));
    for (key, value) in settings {
        builder = builder.set(key, value.clone());
    }
    let engine = builder.open().unwrap();
    let slow = kernel("slow.x", 60, Duration::from_micros(300));
    let fast = kernel("fast.x", 50, Duration::from_micros(30));
    engine.register([slow, fast]).unwrap();
    BackgroundTuner::install(&engine);
    (engine, runs)
}

fn measured(engine: &Engine) -> Vec<String> {
    let rows = engine.perfdb().map(|db| db.show(&Filter::default(), 100));
    let mut kernels: Vec<String> = rows.unwrap_or_default().into_iter().map(|row| row.key.kernel).collect();
    kernels.sort_unstable();
    kernels
}

fn wait_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < DEADLINE {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

const ON: (&str, SettingInput) = ("perfdb.auto_tune", SettingInput::Bool(true));

#[test]
fn unmeasured_kernels_are_measured_and_selected() {
    let folder = Folder::new();
    let (engine, _) = open(&folder, &[ON, ("perfdb.auto_tune_budget_percent", SettingInput::Float(90.0))]);
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "slow.x", "by priority");
    assert!(wait_until(|| measured(&engine) == ["fast.x", "slow.x"]), "{:?}", measured(&engine));
    assert!(wait_until(|| run(&engine, &Shape::default()).unwrap() == "fast.x"), "by measurements");
}

#[test]
fn nothing_is_measured_unless_enabled() {
    let folder = Folder::new();
    let capturing = ModeOverride::NONE.set(ModeFlag::Capturing, true);
    for (settings, change) in [
        (vec![], ModeOverride::NONE),
        (vec![ON, ("perfdb.auto_tune_budget_percent", SettingInput::Float(0.0))], ModeOverride::NONE),
        (vec![ON, ("perfdb.enabled", SettingInput::Bool(false))], ModeOverride::NONE),
        (vec![ON, ("graph_safety.default_graph_safe", SettingInput::Bool(true))], capturing),
    ] {
        let (engine, runs) = open(&folder, &settings);
        let _mode = mode::scope(change);
        run(&engine, &Shape::default()).unwrap();
        let after_call = runs.lock().unwrap().len();
        std::thread::sleep(Duration::from_millis(200));
        // A request with an empty budget ends after the first warm-up runs.
        let is_suspended = settings.iter().any(|(key, _)| key.ends_with("percent"));
        assert!(is_suspended || runs.lock().unwrap().len() == after_call, "{settings:?}");
        assert!(measured(&engine).is_empty(), "{settings:?}");
    }
}

#[test]
fn measuring_stays_within_its_budget() {
    let folder = Folder::new();
    let (engine, runs) = open(&folder, &[ON, ("perfdb.auto_tune_budget_percent", SettingInput::Float(5.0))]);
    run(&engine, &Shape::default()).unwrap();
    let count = || runs.lock().unwrap().len();
    assert!(wait_until(|| count() > 20), "{} runs", count());
    // Turning it off ends the measurement.
    engine.configure([("perfdb.auto_tune".to_owned(), SettingInput::Bool(false))]).unwrap();
    assert!(wait_until(|| {
        let before = count();
        std::thread::sleep(Duration::from_millis(300));
        count() == before
    }));
    // Whatever is before the longest pause had pauses of its own, however slow the machine is.
    let runs = runs.lock().unwrap();
    let (start, measured) = (runs[0][1], &runs[1..]);
    let last = (1..measured.len()).max_by_key(|&at| measured[at][0] - measured[at - 1][1]).unwrap();
    let busy: Duration = measured[..last].iter().map(|[start, end]| *end - *start).sum();
    let share = busy.as_secs_f64() / (measured[last][0] - start).as_secs_f64();
    assert!(share <= 0.05, "{share}");
}
