//! Tuning with a clock that only the kernels advance: measured times and their order are known in advance.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::engine_support::{Shape, attend, failing, run, spec};
use lz_core::{KernelEntry, KernelError, KernelSpec};
use lz_engine::Engine;
use lz_engine::health::{Clock, ManualClock};
use lz_engine::policy::layer::SettingInput;
use lz_engine::tune::{Outcome, Progress, TuneOptions, TuningResult};
use lz_perfdb::{Filter, PerfDb, unix_now};
use lz_test_support::Folder;

struct TuneFixture {
    folder: Folder,
    clock: Arc<ManualClock>,
}

impl TuneFixture {
    fn new() -> TuneFixture {
        TuneFixture { folder: Folder::new(), clock: Arc::new(ManualClock::starting_at(unix_now())) }
    }

    /// A kernel that takes this long by the manual clock.
    fn kernel(&self, spec: KernelSpec, cost_ns: u64) -> KernelEntry {
        let clock = Arc::clone(&self.clock);
        failing(spec, move || {
            clock.advance(Duration::from_nanos(cost_ns));
            Ok(())
        })
    }

    fn engine(&self, kernels: Vec<KernelEntry>) -> Engine {
        let path = self.folder.database().display().to_string();
        let engine = Engine::builder()
            .operations([attend()])
            .set("perfdb.path", SettingInput::Text(path))
            .set("perf_environment.use_nvml", SettingInput::Bool(false))
            .open()
            .unwrap();
        engine.register(kernels).unwrap();
        engine
    }

    fn options(&self) -> TuneOptions {
        TuneOptions {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            sample_time: Duration::ZERO,
            turn_time: Duration::ZERO,
            ..TuneOptions::default()
        }
    }

    fn tune(
        &self,
        engine: &Engine,
        on_progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
    ) -> TuningResult {
        let mut run =
            |entry: &KernelEntry, run: &mut lz_core::Run<'_>| entry.kernel.run(&mut [], &mut [], run);
        engine.tune(attend(), &Shape::default().context(), &self.options(), &mut run, on_progress).unwrap()
    }
}

fn names(tuned: &TuningResult) -> Vec<&str> {
    tuned.kernels.iter().map(|(id, _)| id.as_str()).collect()
}

fn go_on(_: &Progress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn next_engine_selects_the_fastest_measured_kernel_and_explains_it() {
    let fixture = TuneFixture::new();
    let kernels = || {
        vec![
            fixture.kernel(spec("slow.x").priority(50), 9_000),
            fixture.kernel(spec("fast.x").priority(45), 1_000),
            fixture.kernel(spec("middle.x").priority(50), 4_000),
        ]
    };
    let first = fixture.engine(kernels());
    assert_eq!(
        first.decide(attend(), &Shape::default().context()).unwrap(),
        "middle.x",
        "by priority and name"
    );
    let tuned = fixture.tune(&first, &mut go_on);
    assert_eq!(names(&tuned), ["fast.x", "middle.x", "slow.x"]);
    assert_eq!((tuned.best(), tuned.settled, tuned.cancelled), (Some("fast.x"), true, false));
    assert_eq!(tuned.kept, Some(Ok(())));
    assert_eq!(first.decide(attend(), &Shape::default().context()).unwrap(), "fast.x", "from then on");
    drop(first);

    let second = fixture.engine(kernels());
    let explanation = second.explain(attend(), &Shape::default().context());
    assert_eq!(explanation.chosen(), Some("fast.x"));
    let measured = explanation.candidate("fast.x").and_then(|one| one.evidence).unwrap();
    assert_eq!((measured.samples, measured.median_ns), (5, 1_000.0), "settled after the fewest samples");
    assert!(measured.age_seconds < 3600 && measured.confidence > 0.0);
    let text = explanation.to_string();
    assert!(text.contains("1.0 µs median, 5 samples, just measured"), "{text}");
    // Another bucket has no measurements.
    let other = Shape { seq: 4096, ..Shape::default() };
    assert_eq!(second.decide(attend(), &other.context()).unwrap(), "middle.x");
}

#[test]
fn candidates_are_interleaved_and_rounds_rotate() {
    let fixture = TuneFixture::new();
    let engine = fixture.engine(vec![fixture.kernel(spec("a.x"), 100), fixture.kernel(spec("b.x"), 100)]);
    let mut order = String::new();
    let tuned = fixture.tune(&engine, &mut |progress| {
        if let Progress::Sampled { kernel, max, .. } = progress {
            order.push_str(&kernel[..1]);
            assert_eq!(*max, 40);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(&order[..8], "abbaabba");
    assert_eq!(order.len(), 40, "equal kernels are never settled, so all samples are taken");
    assert!(!tuned.settled);
}

#[test]
fn kernel_that_cannot_win_is_excluded() {
    let fixture = TuneFixture::new();
    let kernels = [("a.x", 100), ("b.x", 100), ("endless.x", 9000), ("hopeless.x", 900), ("slower.x", 200)]
        .map(|(id, cost)| fixture.kernel(spec(id), cost));
    let engine = fixture.engine(kernels.into());
    let mut order = String::new();
    let tuned = fixture.tune(&engine, &mut |progress| {
        if let Progress::Sampled { kernel, .. } = progress {
            order.push_str(&kernel[..1]);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(['a', 'b', 'e', 'h', 's'].map(|id| order.matches(id).count()), [20, 20, 1, 2, 5]);
    let all = ["a.x", "b.x", "slower.x", "hopeless.x", "endless.x"];
    assert_eq!(names(&tuned), all, "what was measured of them is kept");
}

/// On a busy machine some runs take several times as long, so confidence is low; a kernel that is 1.5 times faster still wins, whatever
/// the priorities.
#[test]
fn faster_kernel_wins_despite_variance_and_lower_priority() {
    let fixture = TuneFixture::new();
    let varying = |spec: KernelSpec, cost_ns: u64| {
        let (clock, run) = (Arc::clone(&fixture.clock), AtomicU32::new(0));
        failing(spec, move || {
            let is_disturbed = run.fetch_add(1, Ordering::Relaxed) % 5 == 1;
            clock.advance(Duration::from_nanos(if is_disturbed { 4 * cost_ns } else { cost_ns }));
            Ok(())
        })
    };
    let engine = fixture.engine(vec![
        varying(spec("fast.x").priority(20), 6_000),
        varying(spec("slow.x").priority(60), 8_800),
    ]);
    let tuned = fixture.tune(&engine, &mut go_on);
    assert_eq!((tuned.best(), tuned.settled), (Some("fast.x"), false));
    let explanation = engine.explain(attend(), &Shape::default().context());
    for kernel in ["fast.x", "slow.x"] {
        let believed = explanation.candidate(kernel).and_then(|one| one.evidence).unwrap().confidence;
        assert!(believed < 0.2, "{believed}");
    }
    assert_eq!(explanation.chosen(), Some("fast.x"));
}

/// Simulates spinning threads: whatever runs within some milliseconds after another kernel takes three times as long.
#[test]
fn turn_outlasts_effects_of_the_previous_kernel() {
    let fixture = TuneFixture::new();
    let last = Arc::new(std::sync::Mutex::new(("", Duration::ZERO)));
    let kernel = |id: &'static str, cost: u64, awake: Duration| {
        let (clock, last) = (Arc::clone(&fixture.clock), Arc::clone(&last));
        // Which kernel ran last, and since when.
        failing(spec(id), move || {
            let mut last = last.lock().unwrap();
            if last.0 != id {
                *last = (id, clock.elapsed());
            }
            let is_disturbed = clock.elapsed() < last.1 + awake;
            clock.advance(Duration::from_micros(if is_disturbed { 3 * cost } else { cost }));
            Ok(())
        })
    };
    let awake = Duration::from_millis(13);
    let engine = fixture.engine(vec![kernel("ours.x", 100, awake), kernel("theirs.x", 150, Duration::ZERO)]);
    let tune = |turn_time| {
        let options = TuneOptions { turn_time, ..fixture.options() };
        let mut run =
            |entry: &KernelEntry, run: &mut lz_core::Run<'_>| entry.kernel.run(&mut [], &mut [], run);
        let context = Shape::default().context();
        engine.tune(attend(), &context, &options, &mut run, &mut go_on).unwrap()
    };
    assert_eq!(tune(Duration::from_millis(20)).best(), Some("ours.x"));
    assert_eq!(tune(Duration::ZERO).best(), Some("theirs.x"), "the length of a sample decides");
}

/// A kernel that takes seconds where another takes milliseconds is excluded after the warm-up.
#[test]
fn extremely_slow_kernel_is_excluded_after_warm_up() {
    let fixture = TuneFixture::new();
    let engine = fixture.engine(vec![
        fixture.kernel(spec("endless.x").priority(60), 2_000_000_000),
        fixture.kernel(spec("fast.x").priority(20), 1_000_000),
    ]);
    let options = TuneOptions { turn_time: Duration::from_millis(20), ..fixture.options() };
    let mut run = |entry: &KernelEntry, run: &mut lz_core::Run<'_>| entry.kernel.run(&mut [], &mut [], run);
    let context = Shape::default().context();
    let begin = fixture.clock.elapsed();
    let tuned = engine.tune(attend(), &context, &options, &mut run, &mut go_on).unwrap();
    assert!(fixture.clock.elapsed() - begin < Duration::from_secs(5), "two runs, to warm up");
    assert_eq!(names(&tuned), ["fast.x", "endless.x"]);
    assert_eq!(engine.decide(attend(), &context).unwrap(), "fast.x");
}

#[test]
fn no_round_starts_after_the_time_limit() {
    let fixture = TuneFixture::new();
    let engine = fixture.engine(["a.x", "b.x"].map(|id| fixture.kernel(spec(id), 1_500_000_000)).into());
    let tuned = fixture.tune(&engine, &mut go_on);
    let samples = tuned.kernels.iter().map(|(_, outcome)| match outcome {
        Outcome::Measured(timing) => timing.samples,
        _ => 0,
    });
    assert_eq!(samples.collect::<Vec<u64>>(), [4, 4], "three rounds take nine seconds");
    assert!(!tuned.settled && !tuned.cancelled);
}

#[test]
fn cancelling_keeps_measurements() {
    let fixture = TuneFixture::new();
    let engine = fixture.engine(vec![fixture.kernel(spec("a.x"), 100), fixture.kernel(spec("b.x"), 900)]);
    let mut left = 3;
    let tuned = fixture.tune(&engine, &mut |progress| match progress {
        Progress::Sampled { .. } => {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        _ => ControlFlow::Continue(()),
    });
    assert!(tuned.cancelled);
    let samples: Vec<u64> = tuned
        .kernels
        .iter()
        .map(|(_, outcome)| if let Outcome::Measured(timing) = outcome { timing.samples } else { 0 })
        .collect();
    assert_eq!(samples, [1, 2]);
    let db = PerfDb::open(fixture.folder.database()).db;
    assert_eq!(db.count(&Filter::default()), 2);
}

#[test]
fn failing_kernel_is_recorded_and_not_tried_again() {
    let fixture = TuneFixture::new();
    let tries = Arc::new(AtomicU32::new(0));
    let kernels = |tries: &Arc<AtomicU32>| {
        let counted = Arc::clone(tries);
        let bad = failing(spec("bad.x").priority(90), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(KernelError::failed("an illegal instruction"))
        });
        let panics = failing(spec("panics.x"), || panic!("inside"));
        vec![bad, panics, fixture.kernel(spec("good.x"), 100)]
    };
    let engine = fixture.engine(kernels(&tries));
    let mut failed = Vec::new();
    let tuned = fixture.tune(&engine, &mut |progress| {
        if let Progress::Failed { kernel, .. } = progress {
            failed.push((*kernel).to_owned());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(failed, ["bad.x", "panics.x"]);
    assert_eq!(tuned.best(), Some("good.x"));
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    drop(engine);
    let again = fixture.engine(kernels(&tries));
    let tuned = fixture.tune(&again, &mut go_on);
    assert_eq!(tries.load(Ordering::Relaxed), 1, "a new process does not try it again");
    let of = |name: &str| tuned.kernels.iter().find(|(id, _)| id == name).map(|(_, outcome)| outcome.clone());
    assert!(matches!(of("bad.x"), Some(Outcome::Passed(_))), "{:?}", of("bad.x"));
    assert!(matches!(of("good.x"), Some(Outcome::Measured(_))));
}

#[test]
fn crashed_process_leaves_a_mark_of_the_kernel() {
    let fixture = TuneFixture::new();
    let path = fixture.folder.database();
    // Reads the file as another process would, during the first run.
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (noted, inside) = (Arc::clone(&seen), path.clone());
    let clock = Arc::clone(&fixture.clock);
    let watched = failing(spec("watched.x"), move || {
        let marks = PerfDb::open(&inside).db.load_trials();
        noted
            .lock()
            .unwrap()
            .push(marks.into_iter().map(|mark| (mark.kernel, mark.process.pid)).collect::<Vec<_>>());
        clock.advance(Duration::from_nanos(10));
        Ok(())
    });
    let engine = fixture.engine(vec![watched]);
    fixture.tune(&engine, &mut go_on);
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], [("watched.x".to_owned(), std::process::id())]);
    assert!(seen.iter().skip(1).all(Vec::is_empty), "{seen:?}");
    assert!(engine.perfdb().unwrap().load_health(None).is_empty());
}

#[test]
fn only_marks_of_ended_processes_open_a_circuit() {
    let fixture = TuneFixture::new();
    let kernels = || vec![fixture.kernel(spec("suspect.x"), 10), fixture.kernel(spec("good.x"), 20)];
    // A mark of this process, taken during a first run.
    let (taken, path) = (Arc::new(std::sync::Mutex::new(None)), fixture.folder.database());
    let (noted, inside) = (Arc::clone(&taken), path.clone());
    let suspect = failing(spec("suspect.x"), move || {
        let mark = PerfDb::open(&inside).db.load_trials().into_iter().next();
        noted.lock().unwrap().get_or_insert_with(|| mark.unwrap());
        Ok(())
    });
    let engine = fixture.engine(vec![suspect]);
    fixture.tune(&engine, &mut go_on);
    drop(engine);
    let alive = taken.lock().unwrap().clone().unwrap();
    let db = PerfDb::open(&path).db;
    let ended = lz_perfdb::ProcessIdentity { started: alive.process.started + 1, ..alive.process.clone() };
    let far = lz_perfdb::ProcessIdentity { pid_namespace: "pid:[1]".to_owned(), ..ended.clone() };
    for process in [alive.process.clone(), far] {
        db.begin_trial(&lz_perfdb::TrialMark { process, ..alive.clone() }).unwrap();
    }
    let engine = fixture.engine(kernels());
    assert!(engine.circuits().is_empty(), "{:?}", engine.circuits());
    assert_eq!(fixture.tune(&engine, &mut go_on).best(), Some("suspect.x"));
    drop(engine);
    db.begin_trial(&lz_perfdb::TrialMark { process: ended, ..alive.clone() }).unwrap();
    let engine = fixture.engine(kernels());
    let circuits = engine.circuits();
    assert_eq!((circuits.len(), circuits[0].failures, circuits[0].refuses()), (1, 1, true), "{circuits:?}");
    assert_eq!(fixture.tune(&engine, &mut go_on).best(), Some("good.x"));
    assert_eq!(engine.reset_kernel(None), Ok(1));
    assert!(db.load_health(None).is_empty() && db.load_trials().is_empty());
    assert_eq!(fixture.tune(&engine, &mut go_on).best(), Some("suspect.x"));
}

#[test]
fn tuning_works_without_a_database() {
    let fixture = TuneFixture::new();
    let engine = Engine::new();
    engine.register([fixture.kernel(spec("a.x"), 10), fixture.kernel(spec("b.x"), 20)]).unwrap();
    let tuned = fixture.tune(&engine, &mut go_on);
    assert_eq!((tuned.best(), tuned.kept.clone()), (Some("a.x"), None));
}

#[test]
fn time_lost_against_the_fastest_measured_kernel_is_counted() {
    let fixture = TuneFixture::new();
    let clock = Arc::clone(&fixture.clock);
    let slow = failing(spec("slow.x").priority(100), move || {
        clock.advance(Duration::from_micros(9));
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    });
    let engine = fixture.engine(vec![slow, fixture.kernel(spec("fast.x"), 1_000)]);
    fixture.tune(&engine, &mut go_on);
    engine.configure([("enable_profiling".to_owned(), SettingInput::Bool(true))]).unwrap();
    let _preferred = engine.prefer(&["slow".to_owned()]).unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "slow.x");
    let regret = engine.metrics().estimated_regret;
    let [only] = regret.as_slice() else { panic!("{regret:?}") };
    assert!(only.operation == "demo.attend" && (0.0005..5.0).contains(&only.seconds), "{only:?}");
    engine.lock("demo.attend", "fast.x").unwrap();
    assert_eq!(run(&engine, &Shape::default()).unwrap(), "fast.x");
    assert_eq!(engine.metrics().estimated_regret, regret, "the fastest one loses nothing");
}

/// A call that is faster than the measurements lost nothing; one of ten that are timed stands for ten.
#[test]
fn lost_time_is_the_difference_and_counts_for_the_calls_that_are_not_timed() {
    let lost = |measured_ns: u64, sleep: Duration, settings: (&str, SettingInput), calls: usize| {
        let fixture = TuneFixture::new();
        let clock = Arc::clone(&fixture.clock);
        let slow = failing(spec("slow.x").priority(100), move || {
            clock.advance(Duration::from_nanos(measured_ns * 9));
            std::thread::sleep(sleep);
            Ok(())
        });
        let engine = fixture.engine(vec![slow, fixture.kernel(spec("fast.x"), measured_ns)]);
        fixture.tune(&engine, &mut go_on);
        engine.configure([(settings.0.to_owned(), settings.1)]).unwrap();
        let _preferred = engine.prefer(&["slow".to_owned()]).unwrap();
        for _ in 0..calls {
            assert_eq!(run(&engine, &Shape::default()).unwrap(), "slow.x");
        }
        engine.metrics().estimated_regret.first().map_or(0.0, |only| only.seconds)
    };
    let every_call = ("enable_profiling", SettingInput::Bool(true));
    assert_eq!(lost(1_000_000_000, Duration::ZERO, every_call, 3), 0.0);
    let sampled = ("telemetry.sample_every", SettingInput::Int(10));
    let seconds = lost(1_000, Duration::from_millis(2), sampled, 10);
    assert!(seconds >= 0.0199, "one timed call of 2 ms stands for ten: {seconds}");
}
