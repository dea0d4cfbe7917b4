//! The second process: a rank or a tuner beside the one that runs the scenario, with the same house and a database on disk.
//!
//! It is the binary `other-process`; what it answers it prints, one line each.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lz_core::KernelError;
use lz_core::descriptor::combined_hash;
use lz_core::device::DeviceSpec;
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_engine::policy::env;
use lz_engine::table::{LockedDecision, Lockfile};
use lz_ops::NORM_RMS;
use lz_perfdb::{HealthScope, Options, PerfDb};

use crate::calls::{Ask, Norm, Prefill};
use crate::house::{self, host_house, host_spec, stack, vocabulary};
use crate::kernels::doing;
use crate::measured::{evidence, measurement, spec_of};

/// The sizes that every rank is asked about: one in each bucket of rows.
pub const ROWS: [i64; 5] = [1, 16, 256, 4096, 5000];

/// The house of a rank: two kernels that are equally good on paper, and one behind them.
pub fn rank() -> Engine {
    host_house([
        host_spec("alpha.norm.rms").priority(60),
        host_spec("beta.norm.rms").priority(60),
        host_spec("gamma.norm.rms").priority(55),
    ])
}

/// A rank that knows what a database knows.
pub fn rank_with(database: &PerfDb) -> Engine {
    let engine = rank();
    engine.set_evidence(Some(evidence(database, &detect_cpu())));
    engine
}

/// Opens a database with patience for a machine whose cores are busy: what matters is that nothing is lost.
pub fn open(path: &Path) -> PerfDb {
    PerfDb::open_with(path, Options { busy_timeout: Duration::from_secs(120), ..Options::default() }).db
}

/// What a rank decides for each of [`ROWS`].
///
/// # Panics
/// When nothing can run such a call, which the house rules out.
pub fn decisions(engine: &Engine) -> Vec<String> {
    let chosen = |rows| Norm::rows(rows).chosen(engine).unwrap_or_else(|error| panic!("{error}"));
    ROWS.into_iter().map(chosen).collect()
}

/// The decisions of an engine for calls of one device, as a lockfile.
///
/// # Panics
/// When a call cannot be run.
pub fn freeze(engine: &Engine, device: &DeviceSpec, policy: &str, calls: &[(&str, &dyn Freeze)]) -> Lockfile {
    let registry = engine.registry();
    let hashes: Vec<String> = registry.kernels().map(|entry| entry.spec.capabilities_hash.clone()).collect();
    let hash = combined_hash(hashes.iter().map(String::as_str));
    let mut lockfile = Lockfile::new(&device.hardware_signature(), policy, &hash);
    for (context, call) in calls {
        lockfile.add(call.decision(engine, context));
    }
    lockfile
}

/// A call whose decision can be frozen.
pub trait Freeze {
    /// The decision, under a name for its context.
    fn decision(&self, engine: &Engine, context: &str) -> LockedDecision;
}

impl<A: Ask> Freeze for A {
    fn decision(&self, engine: &Engine, context: &str) -> LockedDecision {
        let plan = self.which(engine).unwrap_or_else(|error| panic!("{error}"));
        LockedDecision {
            operation: self.operation().name.to_string(),
            context: context.to_owned(),
            schema: self.operation().digest.to_string(),
            kernel_version: spec_of(engine, &plan.kernel).version,
            kernel: plan.kernel,
            fallbacks: plan.fallbacks,
        }
    }
}

/// The lockfile of a rank.
pub fn freeze_rank(engine: &Engine) -> Lockfile {
    let calls: Vec<(String, Norm)> =
        ROWS.iter().map(|rows| (format!("rows={rows}"), Norm::rows(*rows))).collect();
    let calls: Vec<(&str, &dyn Freeze)> =
        calls.iter().map(|(name, call)| (name.as_str(), call as &dyn Freeze)).collect();
    freeze(engine, &detect_cpu(), "default", &calls)
}

/// What a rank has when one of its kernels breaks on every call.
pub fn broken_rank() -> Engine {
    let engine = rank();
    let bad = host_spec("delta.norm.rms").priority(90);
    house::register(
        &engine,
        [doing(bad, &NORM_RMS, || Err(KernelError::failed("an illegal memory access")))],
    );
    engine
}

/// Starts the second process with its output at hand.
///
/// # Panics
/// When it cannot be started.
pub fn start(binary: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(binary);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn().unwrap_or_else(|error| panic!("{binary}: {error}"))
}

/// Runs the second process to its end and hands back its lines.
///
/// # Panics
/// When it fails.
pub fn ask(binary: &str, arguments: &[&str]) -> Vec<String> {
    let output = start(binary, arguments).wait_with_output().unwrap_or_else(|error| panic!("{error}"));
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Does what the second process is asked to do.
///
/// # Panics
/// When the scenario's question is wrong.
pub fn serve(arguments: &[String]) {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["decide", database] => {
            decisions(&rank_with(&open(Path::new(database)))).iter().for_each(|kernel| println!("{kernel}"));
        }
        ["digest"] => println!("{}", freeze_rank(&rank()).digest()),
        ["freeze", database, lockfile] => {
            let text = freeze_rank(&rank_with(&open(Path::new(database)))).text();
            std::fs::write(lockfile, text).expect("the scenario's folder can be written");
        }
        ["tune", database, kernel, nanoseconds] => {
            let engine = rank();
            let median = nanoseconds.parse().expect("a number of nanoseconds");
            let database = open(Path::new(database));
            for rows in ROWS {
                let row = measurement(&Norm::rows(rows), &spec_of(&engine, kernel), &detect_cpu(), median);
                database.record(&row).expect("the database is writable");
            }
        }
        ["tune-for-ever", database, first] => {
            let (engine, database) = (rank(), open(Path::new(database)));
            let first: i64 = first.parse().expect("a size");
            for hidden in first.. {
                record(&database, &engine, hidden);
                println!("stored {hidden}");
            }
        }
        ["tune-and-crash", database, kernel] => {
            let (engine, database) = (broken_rank(), open(Path::new(database)));
            (1..=3).for_each(|hidden| record(&database, &engine, 64 * hidden));
            // What is about to be tried is noted first, so that a crash is not tried again after the restart.
            while Norm::default().chosen(&engine).is_ok_and(|chosen| chosen == *kernel) {
                Norm::default().serve(&engine).expect("others do its work");
            }
            database.save_health(&engine.health().export(&detect_cpu().uuid)).expect("it is writable");
            std::process::abort();
        }
        ["health", database] => {
            let engine = broken_rank();
            restore(&engine, &open(Path::new(database)));
            println!("{}", Norm::default().chosen(&engine).unwrap_or_else(|error| panic!("{error}")));
        }
        ["environment"] => environment(),
        _ => panic!("nobody knows how to {words:?}"),
    }
    std::io::stdout().flush().expect("whoever asks listens");
}

fn record(database: &PerfDb, engine: &Engine, hidden: i64) {
    let row = measurement(&Norm::hidden(hidden), &spec_of(engine, "alpha.norm.rms"), &detect_cpu(), 100.0);
    database.record(&row).expect("the database is writable");
}

/// Gives an engine the health that a database remembers; says how many circuits came back.
pub fn restore(engine: &Engine, database: &PerfDb) -> usize {
    let (rows, registry) = (database.load_health(None), engine.registry());
    engine.health().import(&rows, &detect_cpu().uuid, |scope, name| match scope {
        HealthScope::Kernel => registry.kernel(name).map(|entry| entry.spec.version.clone()),
        HealthScope::Backend => registry.backend(name).map(|backend| backend.version.clone()),
    })
}

/// Decides on an H100 under the variables that this process was started with.
fn environment() {
    let engine = house::house_on("h100");
    let stack = stack(&engine);
    match env::read(std::env::vars_os(), &vocabulary()) {
        Ok(environment) => {
            stack.set_environment(&environment);
            match Prefill::llama3_8b().chosen(&engine) {
                Ok(kernel) => println!("{kernel}"),
                Err(error) => println!("{error}"),
            }
            environment.warnings.iter().for_each(|warning| println!("{}", warning.message));
        }
        Err(report) => println!("{report}"),
    }
}
