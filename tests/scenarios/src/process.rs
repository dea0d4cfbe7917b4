//! The second process of a scenario: a rank or a tuner with the same kernels and a database on disk.
//!
//! Implemented by the binary `other-process`, which prints one result per line.

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

use crate::calls::{Norm, Prefill, ScenarioCall};
use crate::engines::{self, host_engine, host_spec, stack, vocabulary};
use crate::kernels::kernel_fn;
use crate::measured::{evidence, measurement, spec_of};

/// Row counts for which every rank decides: one per bucket of `rows`.
pub const ROWS: [i64; 5] = [1, 16, 256, 4096, 5000];

/// Engine of a rank: two kernels with equal priority and one with a lower priority.
pub fn rank() -> Engine {
    host_engine([
        host_spec("alpha.norm.rms").priority(60),
        host_spec("beta.norm.rms").priority(60),
        host_spec("gamma.norm.rms").priority(55),
    ])
}

/// Engine of a rank with the evidence of a database.
pub fn rank_with(database: &PerfDb) -> Engine {
    let engine = rank();
    engine.set_evidence(Some(evidence(database, &detect_cpu())));
    engine
}

/// Opens a database with a long busy timeout, because test machines are loaded and no write may be lost.
pub fn open(path: &Path) -> PerfDb {
    PerfDb::open_with(path, Options { busy_timeout: Duration::from_secs(120), ..Options::default() }).db
}

/// Kernel ids that a rank selects for each of [`ROWS`].
///
/// # Panics
/// If no kernel can run a call.
pub fn decisions(engine: &Engine) -> Vec<String> {
    let chosen = |rows| Norm::rows(rows).selected(engine).unwrap_or_else(|error| panic!("{error}"));
    ROWS.into_iter().map(chosen).collect()
}

/// Decisions of an engine for calls on one device, as a lockfile.
///
/// # Panics
/// If a call cannot be run.
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

/// A call whose decision can be written to a lockfile.
pub trait Freeze {
    /// The decision, labeled with `context`.
    fn decision(&self, engine: &Engine, context: &str) -> LockedDecision;
}

impl<A: ScenarioCall> Freeze for A {
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

/// Lockfile of a rank.
pub fn freeze_rank(engine: &Engine) -> Lockfile {
    let calls: Vec<(String, Norm)> =
        ROWS.iter().map(|rows| (format!("rows={rows}"), Norm::rows(*rows))).collect();
    let calls: Vec<(&str, &dyn Freeze)> =
        calls.iter().map(|(name, call)| (name.as_str(), call as &dyn Freeze)).collect();
    freeze(engine, &detect_cpu(), "default", &calls)
}

/// A rank with one additional kernel that fails on every call.
pub fn broken_rank() -> Engine {
    let engine = rank();
    let bad = host_spec("delta.norm.rms").priority(90);
    engines::register(
        &engine,
        [kernel_fn(bad, &NORM_RMS, || Err(KernelError::failed("an illegal memory access")))],
    );
    engine
}

/// Starts the second process with piped stdout.
///
/// # Panics
/// If the process cannot be started.
pub fn start(binary: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(binary);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn().unwrap_or_else(|error| panic!("{binary}: {error}"))
}

/// Runs the second process and returns its output lines.
///
/// # Panics
/// If the process fails.
pub fn run_process(binary: &str, arguments: &[&str]) -> Vec<String> {
    let output = start(binary, arguments).wait_with_output().unwrap_or_else(|error| panic!("{error}"));
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Entry point of the second process: runs the subcommand in `arguments`.
///
/// # Panics
/// If the subcommand is unknown.
pub fn run_subcommand(arguments: &[String]) {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["decide", database] => {
            decisions(&rank_with(&open(Path::new(database)))).iter().for_each(|kernel| println!("{kernel}"));
        }
        ["digest"] => println!("{}", freeze_rank(&rank()).digest()),
        ["freeze", database, lockfile] => {
            let text = freeze_rank(&rank_with(&open(Path::new(database)))).text();
            std::fs::write(lockfile, text).expect("cannot write the lockfile");
        }
        ["tune", database, kernel, nanoseconds] => {
            let engine = rank();
            let median = nanoseconds.parse().expect("nanoseconds must be a number");
            let database = open(Path::new(database));
            for rows in ROWS {
                let row = measurement(&Norm::rows(rows), &spec_of(&engine, kernel), &detect_cpu(), median);
                database.record(&row).expect("the database is writable");
            }
        }
        ["tune-for-ever", database, first] => {
            let (engine, database) = (rank(), open(Path::new(database)));
            let first: i64 = first.parse().expect("first must be an integer");
            for hidden in first.. {
                record(&database, &engine, hidden);
                println!("stored {hidden}");
            }
        }
        ["tune-and-crash", database, kernel] => {
            let (engine, database) = (broken_rank(), open(Path::new(database)));
            (1..=3).for_each(|hidden| record(&database, &engine, 64 * hidden));
            // Record the failing kernel before the crash, so that it is not tried again after the restart.
            while Norm::default().selected(&engine).is_ok_and(|chosen| chosen == *kernel) {
                Norm::default().serve(&engine).expect("a fallback kernel runs the call");
            }
            database
                .save_health(&engine.health().export(&detect_cpu().uuid))
                .expect("the database is writable");
            std::process::abort();
        }
        ["health", database] => {
            let engine = broken_rank();
            restore(&engine, &open(Path::new(database)));
            println!("{}", Norm::default().selected(&engine).unwrap_or_else(|error| panic!("{error}")));
        }
        ["environment"] => environment(),
        _ => panic!("unknown subcommand {words:?}"),
    }
    std::io::stdout().flush().expect("cannot flush stdout");
}

fn record(database: &PerfDb, engine: &Engine, hidden: i64) {
    let row = measurement(&Norm::hidden(hidden), &spec_of(engine, "alpha.norm.rms"), &detect_cpu(), 100.0);
    database.record(&row).expect("the database is writable");
}

/// Restores the health records of the database into an engine; returns the number of restored circuits.
pub fn restore(engine: &Engine, database: &PerfDb) -> usize {
    let (rows, registry) = (database.load_health(None), engine.registry());
    engine.health().import(&rows, &detect_cpu().uuid, |scope, name| match scope {
        HealthScope::Kernel => registry.kernel(name).map(|entry| entry.spec.version.clone()),
        HealthScope::Backend => registry.backend(name).map(|backend| backend.version.clone()),
    })
}

/// Prints the kernel selected on an H100 under this process's environment variables.
fn environment() {
    let engine = engines::engine_on("h100");
    let stack = stack(&engine);
    match env::read(std::env::vars_os(), &vocabulary()) {
        Ok(environment) => {
            stack.set_environment(&environment);
            match Prefill::llama3_8b().selected(&engine) {
                Ok(kernel) => println!("{kernel}"),
                Err(error) => println!("{error}"),
            }
            environment.warnings.iter().for_each(|warning| println!("{}", warning.message));
        }
        Err(report) => println!("{report}"),
    }
}
