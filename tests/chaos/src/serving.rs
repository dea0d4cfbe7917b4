//! A serving process: threads that call operations of many shapes, tune, and fork, while kernels and files break.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lz_core::{Error, KernelEntry, Tensor, TensorView};
use lz_engine::Engine;
use lz_engine::bucket::Bucket;
use lz_engine::health::{CircuitReport, DegradationLevel};
use lz_engine::tune::{Outcome, TuneOptions};
use lz_ops::{ACTIVATION_GELU, ACTIVATION_SILU, NORM_RMS, NormRms, TOKENIZE_ENCODE};
use lz_worker::{Worker, WorkerOptions};

use crate::calls::Caller;
use crate::counters::{self, Counter};
use crate::counts::{Counts, count};
use crate::faults::{self, CALM_VARIABLE, Fault, Faulty, IN_PROCESS, Injection, SEED_VARIABLE};
use crate::leaks::Held;
use crate::random::Random;
use crate::{lockfiles, memory, plugins, system};

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
    let (report, is_clean) = counts.report(injection.count.load(Ordering::Relaxed));
    let path = arguments.folder.join(format!("report-{}.json", std::process::id()));
    if fs::write(path, report.to_string()).is_err() || !is_clean {
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
    let encode = faulty("tokenize.encode", &[Fault::WrongShape, Fault::Error], 20, 3);
    let gelu = faulty("activation.gelu", &[Fault::WrongValues], 50, 2);
    engine.register([
        KernelEntry::new(faults::spec("chaos.activation.silu", "activation.silu", 99), silu)
            .of(&ACTIVATION_SILU),
        KernelEntry::new(faults::spec("chaos.activation.gelu", "activation.gelu", 99), gelu)
            .of(&ACTIVATION_GELU),
        KernelEntry::new(faults::spec("chaos.tokenize.encode", "tokenize.encode", 99), encode)
            .of(&TOKENIZE_ENCODE),
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
    let caller = match Caller::new(&engine, counts) {
        Ok(caller) => caller,
        Err(error) => return counts.violation(format!("cannot open the reference: {error}")),
    };
    memory::start(&arguments.folder);
    let reload = engine.watch_config(&arguments.folder.join("layerzero.yaml"), |_| {});
    let end = Instant::now() + arguments.time;
    std::thread::scope(|scope| {
        for thread in 0..arguments.threads {
            let (engine, caller) = (&engine, &caller);
            scope.spawn(move || {
                let mut random = Random::new(arguments.seed, 1_000_000 + arguments.number * 1000 + thread);
                while Instant::now() < end {
                    step(engine, caller, arguments, counts, &mut random, thread);
                }
            });
        }
    });
    // No more faults: health recovers, and calls use the faulty kernels again.
    injection.is_calm.store(true, Ordering::Relaxed);
    memory::stop();
    fs::write(arguments.folder.join("calm"), b"").ok();
    recover(&engine, &caller, counts);
    drop(caller);
    drop(reload);
    engine.wait_for_verification(Duration::from_secs(60));
    counts.worker_restarts.store(engine.metrics().worker_restarts, Ordering::Relaxed);
    drop(worker);
    drop(engine);
}

fn step(
    engine: &Engine,
    caller: &Caller<'_>,
    arguments: &Arguments,
    counts: &Counts,
    random: &mut Random,
    thread: u64,
) {
    caller.call(random);
    if thread == 0 && random.once_in(100) {
        tune(engine, arguments, counts, random);
    }
    if thread == 0 && random.once_in(500) {
        fork(caller, counts, random);
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
    count(&counts.tuned);
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

/// How long a forked child may take for its calls.
const CHILD_SECONDS: u32 = 60;

/// Forks in the middle of everything. The child makes calls with the engine that it inherits, without the threads and the worker.
fn fork(caller: &Caller<'_>, counts: &Counts, random: &mut Random) {
    counters::add(Counter::Forks);
    let before = counts.violations();
    // SAFETY: the child uses only the engine, which supports forks, and ends without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        system::stop();
        memory::stop();
        // SAFETY: ends the child if it waits for a thread that only its parent has.
        unsafe { libc::alarm(CHILD_SECONDS) };
        (0..5).for_each(|_| caller.call(random));
        // SAFETY: ends the child without running destructors, which belong to the parent.
        unsafe { libc::_exit(i32::from(counts.violations() > before)) };
    }
    if child > 0 {
        let mut status = 0;
        // SAFETY: our child, and a valid pointer.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        // The driver may have killed it in place of a worker.
        if status != 0 && status != libc::SIGKILL {
            counts.violation(format!("a forked child ended with status {status}"));
        }
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
fn recover(engine: &Engine, caller: &Caller<'_>, counts: &Counts) {
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
            caller.call(&mut random);
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
