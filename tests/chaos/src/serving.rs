//! A serving process: threads that call operations of many shapes, tune, and fork, while kernels and files break.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lz_core::{Error, KernelEntry, ReasonCode, Tensor, TensorView, equivalence};
use lz_engine::Engine;
use lz_engine::bucket::Bucket;
use lz_engine::health::{CircuitReport, DegradationLevel};
use lz_engine::tune::{Outcome, TuneOptions};
use lz_ops::{
    ACTIVATION_GELU, ACTIVATION_SILU, ActivationGelu, ActivationSilu, NORM_RMS, NormRms, activation_gelu,
    activation_silu, norm_rms,
};
use lz_worker::{Worker, WorkerOptions};
use serde_json::json;

use crate::counters::{self, Counter};
use crate::faults::{self, CALM_VARIABLE, Fault, Faulty, IN_PROCESS, Injection, SEED_VARIABLE};
use crate::leaks::Held;
use crate::random::Random;
use crate::{lockfiles, plugins, system};

/// What a call may fail with, because a fallback was interrupted by another fault.
const LISTED_ERRORS: &[ReasonCode] = &[
    ReasonCode::KernelFailed,
    ReasonCode::KernelPanicked,
    ReasonCode::KernelDeclined,
    ReasonCode::CapacityExceeded,
    ReasonCode::WorkerCrashed,
    ReasonCode::WorkerHung,
    ReasonCode::WorkerOom,
    ReasonCode::WorkerGarbage,
    ReasonCode::WorkerUnavailable,
    ReasonCode::OutOfMemory,
    ReasonCode::CircuitHalfOpenBusy,
    ReasonCode::EnvironmentFailed,
];

/// How long health may take to recover after the last fault.
const RECOVERY_TIME: Duration = Duration::from_secs(20);
/// The limit of resident memory.
const MAX_PEAK_MB: usize = 1024;

/// The arguments of a serving process.
struct Arguments {
    seed: u64,
    number: u64,
    time: Duration,
    threads: u64,
    folder: PathBuf,
}

/// Counters of a process.
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    listed_errors: AtomicU64,
    wrong_values: AtomicU64,
    tuned: AtomicU64,
    worker_restarts: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl Counts {
    fn violation(&self, text: String) {
        eprintln!("violation: {text}");
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// The main function of a serving process: `serve SEED NUMBER SECONDS THREADS FOLDER`.
pub fn main(arguments: &[String]) -> ExitCode {
    let [seed, number, seconds, threads, folder] = arguments else { return ExitCode::FAILURE };
    let parse = |text: &String| text.parse::<u64>().unwrap_or(0);
    let arguments = Arguments {
        seed: parse(seed),
        number: parse(number),
        time: Duration::from_secs(parse(seconds)),
        threads: parse(threads),
        folder: folder.into(),
    };
    if let Err(error) = counters::map(&arguments.folder) {
        eprintln!("lz-chaos: {error}");
        return ExitCode::FAILURE;
    }
    // SAFETY: a write beyond the limit of a file's size, which a fault sets, must be an error and not end the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    // The messages of injected panics say nothing.
    std::panic::set_hook(Box::new(|_| {}));
    let (before, counts, injection) = (Held::now(), Counts::default(), Arc::<Injection>::default());
    serve(&arguments, &counts, &injection);
    check_leaks(&before, &counts);
    let violations = counts.violations.into_inner().unwrap_or_else(PoisonError::into_inner);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let report = json!({
        "number": arguments.number,
        "calls": load(&counts.calls),
        "faults": load(&injection.count),
        "listed_errors": load(&counts.listed_errors),
        "wrong_values": load(&counts.wrong_values),
        "tuned": load(&counts.tuned),
        "worker_restarts": load(&counts.worker_restarts),
        "violations": violations,
        "held": format!("{:?}", Held::now()),
    });
    let path = arguments.folder.join(format!("report-{}.json", std::process::id()));
    if fs::write(path, report.to_string()).is_err() || !violations.is_empty() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// After the engine is dropped, everything that it held is given back.
fn check_leaks(before: &Held, counts: &Counts) {
    let start = Instant::now();
    loop {
        let now = Held::now();
        let is_clean = now.segments == 0
            && now.children <= before.children
            && now.threads <= before.threads + 1
            && now.descriptors <= before.descriptors + 2;
        if is_clean && now.peak_mb <= MAX_PEAK_MB {
            return;
        }
        if start.elapsed() > Duration::from_secs(15) {
            return counts.violation(format!("held after the end: {now:?}, before: {before:?}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn open(arguments: &Arguments, injection: &Arc<Injection>) -> Result<(Engine, Worker), Error> {
    // Even processes have a database of their own, which the driver breaks; the others share one, whose measurements must last.
    let database = if arguments.number.is_multiple_of(2) {
        format!("own-{}.sqlite", arguments.number)
    } else {
        "shared.sqlite".to_owned()
    };
    let path = arguments.folder.join(database).display().to_string();
    let engine = Engine::builder()
        .operations(lz_ops::OPERATIONS)
        // A process does not start with a broken policy; one that runs keeps its own.
        .config(arguments.folder.join("start.yaml"))
        .set("perfdb.path", lz_engine::policy::layer::SettingInput::Text(path))
        .warn(|_| {})
        .open()?;
    lz_engine::verify::install(&engine);
    engine.record_decisions(true);
    engine.register(lz_ops::reference_kernels::kernels())?;
    engine.register(lz_cpu::kernels())?;
    let stream = |number: u64| Random::new(arguments.seed, arguments.number * 100 + number);
    let faulty = |operation: &str, faults: &'static [Fault], every, number| {
        Faulty::new(faults::reference(operation), faults, every, stream(number), Arc::clone(injection))
    };
    let silu = faulty("activation.silu", IN_PROCESS, 20, 1);
    let gelu = faulty("activation.gelu", &[Fault::WrongValues], 50, 2);
    engine.register([
        KernelEntry::new(faults::spec("chaos.activation.silu", "activation.silu", 99), silu)
            .of(&ACTIVATION_SILU),
        KernelEntry::new(faults::spec("chaos.activation.gelu", "activation.gelu", 99), gelu)
            .of(&ACTIVATION_GELU),
    ])?;
    let program = std::env::current_exe().unwrap_or_default();
    let mut options = WorkerOptions::new(program);
    options.environment = vec![
        (SEED_VARIABLE.into(), arguments.seed.to_string().into()),
        (CALM_VARIABLE.into(), arguments.folder.join("calm").into()),
    ];
    (options.arena_bytes, options.arena_limit) = (1 << 20, 16 << 20);
    options.deadline = Duration::from_millis(700);
    options.memory_limit = Some(128 << 20);
    options.telemetry = Some(engine.telemetry());
    let worker = Worker::on_demand(options).map_err(|reason| Error::Configuration {
        subject: "worker".to_owned(),
        message: reason.to_string(),
        reasons: vec![reason],
    })?;
    engine.register([worker.kernel(faults::spec("far.norm.rms", "norm.rms", 99), &NORM_RMS)])?;
    Ok((engine, worker))
}

fn serve(arguments: &Arguments, counts: &Counts, injection: &Arc<Injection>) {
    let (engine, worker) = match open(arguments, injection) {
        Ok(opened) => opened,
        Err(error) => return counts.violation(format!("cannot open: {error}")),
    };
    let truth = match Engine::with_kernels(lz_ops::reference_kernels::kernels()) {
        Ok(truth) => truth,
        Err(error) => return counts.violation(format!("cannot open the reference: {error}")),
    };
    let reload = engine.watch_config(&arguments.folder.join("layerzero.yaml"), |_| {});
    let end = Instant::now() + arguments.time;
    std::thread::scope(|scope| {
        for thread in 0..arguments.threads {
            let (engine, truth) = (&engine, &truth);
            scope.spawn(move || {
                let mut random = Random::new(arguments.seed, 1_000_000 + arguments.number * 1000 + thread);
                while Instant::now() < end {
                    step(engine, truth, arguments, counts, &mut random, thread);
                }
            });
        }
    });
    // No more faults: health recovers, and calls use the faulty kernels again.
    injection.is_calm.store(true, Ordering::Relaxed);
    fs::write(arguments.folder.join("calm"), b"").ok();
    recover(&engine, &truth, counts);
    drop(reload);
    engine.wait_for_verification(Duration::from_secs(60));
    counts.worker_restarts.store(engine.metrics().worker_restarts, Ordering::Relaxed);
    drop(worker);
    drop(engine);
}

fn step(
    engine: &Engine,
    truth: &Engine,
    arguments: &Arguments,
    counts: &Counts,
    random: &mut Random,
    thread: u64,
) {
    call(engine, truth, counts, random);
    if thread == 0 && random.once_in(100) {
        tune(engine, arguments, counts, random);
    }
    if thread == 0 && random.once_in(500) {
        fork();
    }
    if thread == 1 && arguments.number.is_multiple_of(2) && random.once_in(500) {
        fill_disk(random);
    }
    if thread == 1 {
        disturb(engine, arguments, counts, random);
    }
}

/// Faults of the system, of plugins and of lockfiles.
fn disturb(engine: &Engine, arguments: &Arguments, counts: &Counts, random: &mut Random) {
    let outcome = match random.below(100) {
        0..8 => {
            system::fail_for_a_moment(random);
            Ok(())
        }
        8 => {
            counters::add(Counter::ClockJumps);
            system::jump_the_clock(random);
            Ok(())
        }
        9 | 10 => plugins::reload(engine, &arguments.folder, random),
        11..16 => lockfiles::write_or_read(engine, &arguments.folder, random, arguments.number),
        _ => Ok(()),
    };
    if let Err(violation) = outcome {
        counts.violation(violation);
    }
}

/// One call of a random operation and shape. Its values are right, or its error is listed.
fn call(engine: &Engine, truth: &Engine, counts: &Counts, random: &mut Random) {
    let (rows, width) = (1 + random.below(20) as i64, *random.pick(&[4i64, 16, 64, 100]));
    let data: Vec<f32> = (0..rows * width).map(|_| random.value()).collect();
    let Ok(x) = TensorView::from_slice(&data, &[rows, width]) else { return };
    type Call = fn(&Engine, TensorView<'_>) -> Result<Tensor, Error>;
    let calls: [(&lz_core::OperationInfo, Call); 3] = [
        (&NORM_RMS, |engine, x| Ok(norm_rms(engine, NormRms::new(x))?.output)),
        (&ACTIVATION_SILU, |engine, x| Ok(activation_silu(engine, ActivationSilu::new(x))?.output)),
        (&ACTIVATION_GELU, |engine, x| Ok(activation_gelu(engine, ActivationGelu::new(x))?.output)),
    ];
    let (operation, run) = *random.pick(&calls);
    counts.calls.fetch_add(1, Ordering::Relaxed);
    let found = match run(engine, x) {
        Ok(found) => found,
        Err(error) => {
            counts.listed_errors.fetch_add(1, Ordering::Relaxed);
            if !LISTED_ERRORS.iter().any(|code| error.has(*code)) {
                counts.violation(format!("{}: unlisted error {error}", operation.name));
            }
            return;
        }
    };
    let expected = match run(truth, x) {
        Ok(expected) => expected,
        Err(error) => return counts.violation(format!("the reference failed: {error}")),
    };
    let difference = equivalence::difference(operation.schema(), &found.view(), &expected.view());
    if let Some(difference) = difference {
        // One kernel returns wrong values on purpose, until verification finds it.
        counts.wrong_values.fetch_add(1, Ordering::Relaxed);
        if operation.name != "activation.gelu" {
            counts.violation(format!("{}: {difference}", operation.name));
        }
    }
}

/// Tunes a call. Measurements that were acknowledged are written to a file, which the driver compares with the database.
fn tune(engine: &Engine, arguments: &Arguments, counts: &Counts, random: &mut Random) {
    let width = 8 + 8 * random.below(8) as i64;
    let data = vec![1.0f32; 4 * width as usize];
    let Ok(view) = TensorView::from_slice(&data, &[4, width]) else { return };
    let args = NormRms::new(view);
    let Ok(call) = args.check() else { return };
    let Ok(mut output) = Tensor::zeros(&[4, width], lz_core::DType::F32) else { return };
    let options = TuneOptions {
        warm_up: 1,
        min_samples: 2,
        max_samples: 2,
        turn_time: Duration::ZERO,
        in_background: true,
        max_time: Duration::from_millis(200),
        ..TuneOptions::default()
    };
    let mut run_one = |entry: &KernelEntry, run: &mut lz_core::Run<'_>| {
        let out = call.outputs(output.view_mut()).map_err(lz_core::KernelError::invalid)?;
        call.run_kernel(entry, out, run)
    };
    let tuned =
        engine.tune(&NORM_RMS, &call.context(), &options, &mut run_one, &mut |_| ControlFlow::Continue(()));
    let Ok(tuned) = tuned else { return };
    counts.tuned.fetch_add(1, Ordering::Relaxed);
    let is_shared = !arguments.number.is_multiple_of(2);
    if tuned.kept == Some(Ok(())) && is_shared {
        let measured = tuned.kernels.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Measured(_)));
        let bucket = Bucket::of(&NORM_RMS, &call.context());
        let lines: String = measured.map(|(kernel, _)| format!("{kernel} {:?}\n", bucket.words())).collect();
        append(&arguments.folder.join("acknowledged"), &lines);
    }
}

fn append(path: &Path, lines: &str) {
    let file = OpenOptions::new().append(true).create(true).open(path);
    if let Ok(mut file) = file {
        let _ = file.write_all(lines.as_bytes()).and_then(|()| file.sync_all());
    }
}

/// Forks in the middle of everything. The child makes a call with an engine of its own and ends.
fn fork() {
    counters::add(Counter::Forks);
    // SAFETY: the child uses no lock of the parent's threads: it ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without running destructors, which belong to the parent.
        unsafe { libc::_exit(0) };
    }
    if child > 0 {
        let mut status = 0;
        // SAFETY: our child, and a valid pointer.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
    }
}

/// Makes writes fail for a moment, as on a full disk.
fn fill_disk(random: &mut Random) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: valid structures.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    let full = libc::rlimit { rlim_cur: 1 + random.below(4096), ..limit };
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const full) };
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
}

/// After the last fault, the engine recovers: no degradation, and circuits let calls pass again, except quarantined ones.
fn recover(engine: &Engine, truth: &Engine, counts: &Counts) {
    let mut random = Random::new(7, 7);
    let start = Instant::now();
    let refusing = || -> Vec<CircuitReport> {
        let circuits = engine.health().circuits().into_iter();
        circuits.filter(|one| one.refuses() && !one.quarantined).collect()
    };
    // The backoff doubles with every opening; circuits with a long one are left.
    let is_short = |one: &CircuitReport| one.retry_in.is_none_or(|time| time < RECOVERY_TIME / 2);
    let expected: Vec<(String, Vec<u64>)> =
        refusing().into_iter().filter(is_short).map(|one| (one.name, one.bucket)).collect();
    let waiting = || -> Vec<String> {
        let expected = |one: &CircuitReport| expected.contains(&(one.name.clone(), one.bucket.clone()));
        refusing()
            .into_iter()
            .filter(expected)
            .map(|one| format!("{}: {}", one.name, one.last_error))
            .collect()
    };
    loop {
        for _ in 0..50 {
            call(engine, truth, counts, &mut random);
        }
        let level = engine.health().level();
        if level == DegradationLevel::Full && waiting().is_empty() {
            return;
        }
        if start.elapsed() > RECOVERY_TIME {
            return counts.violation(format!("health has not recovered: {level:?} {:?}", waiting()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
