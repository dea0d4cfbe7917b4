//! The driver: starts serving processes, breaks their files and kills them, and checks what they leave.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use lz_perfdb::{Filter, OpenStatus, PerfDb};
use lz_test_support::Folder;
use serde_json::Value;

use crate::Options;
use crate::counters::{self, Counter};
use crate::faults::SEED_VARIABLE;
use crate::random::Random;
use crate::{lockfiles, memory, plugins};

/// The policy of all processes. Circuits recover quickly, so that the end of a run can wait for it.
const POLICY: &str = "\
circuit_breaker: {timeout_ms: 50, failure_threshold: 3}
verify: sampled
verify_share: 0.05
verify_directory: FOLDER/reproducers
";

/// Policies that are refused: a reload must keep the previous one.
const BROKEN: &[&str] =
    &["", "verify: [", "no_such_key: 1\n", "verify: sometimes\n", "\0\0\0", "circuit_breaker: 7\n"];

/// How long a process may take to end after its time.
const GRACE_TIME: Duration = Duration::from_secs(120);

/// Totals of a run.
#[derive(Debug, Default)]
struct Totals {
    counts: BTreeMap<String, u64>,
    violations: Vec<String>,
}

impl Totals {
    fn add(&mut self, name: &str, count: u64) {
        *self.counts.entry(name.to_owned()).or_default() += count;
    }
}

/// Runs the driver.
pub fn run(options: &Options) -> ExitCode {
    let temporary = Folder::new();
    let folder = temporary.path();
    let mut totals = Totals::default();
    let prepared = fs::write(folder.join("start.yaml"), policy(folder, POLICY))
        .and_then(|()| write_policy(folder, POLICY))
        .and_then(|()| counters::map(folder));
    if let Err(error) = prepared {
        eprintln!("lz-chaos: {error}");
        return ExitCode::FAILURE;
    }
    if !plugins::compile(folder) {
        eprintln!("lz-chaos: no C compiler, so that no plugins are reloaded");
    }
    drive(options, folder, &mut totals);
    check_measurements(folder, &mut totals);
    collect(folder, &mut totals);
    let reproducers = fs::read_dir(folder.join("reproducers")).map_or(0, |files| files.count() as u64);
    totals.add("reproducers", reproducers);
    Counter::ALL.iter().for_each(|(counter, name)| totals.add(name, counters::read(*counter)));
    let (seed, seconds) = (options.seed, options.time.as_secs());
    println!("seed {seed}, {seconds} s, {} processes, {} threads each", options.processes, options.threads);
    totals.counts.iter().for_each(|(name, count)| println!("{name}: {count}"));
    for violation in &totals.violations {
        println!("VIOLATION: {violation}");
    }
    if totals.violations.is_empty() {
        println!("no invariant was violated");
        ExitCode::SUCCESS
    } else {
        println!("reproduce with: cargo xtask chaos --seed {seed} --seconds {seconds}");
        ExitCode::FAILURE
    }
}

/// A serving process; killed ones are started again.
struct Serving {
    child: Child,
    number: u64,
    started: Instant,
    was_killed: bool,
}

fn start(options: &Options, folder: &Path, number: u64, left: Duration) -> std::io::Result<Serving> {
    let texts = [options.seed, number, left.as_secs().max(1), options.threads].map(|value| value.to_string());
    let child = Command::new(std::env::current_exe()?)
        .arg("serve")
        .args(texts)
        .arg(folder)
        .env_remove(SEED_VARIABLE)
        // A failed allocation is not worth one.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .spawn()?;
    Ok(Serving { child, number, started: Instant::now(), was_killed: false })
}

fn drive(options: &Options, folder: &Path, totals: &mut Totals) {
    let mut random = Random::new(options.seed, 0);
    let end = Instant::now() + options.time;
    let mut serving: Vec<Serving> = Vec::new();
    for number in 0..options.processes {
        match start(options, folder, number, options.time) {
            Ok(one) => serving.push(one),
            Err(error) => totals.violations.push(format!("cannot start a process: {error}")),
        }
    }
    while !serving.is_empty() {
        let is_over = Instant::now() > end;
        if !is_over {
            inject(folder, &mut serving, totals, &mut random);
        }
        std::thread::sleep(Duration::from_millis(50 + random.below(150)));
        let mut left: Vec<Serving> = Vec::new();
        for mut one in std::mem::take(&mut serving) {
            let outcome = one.child.try_wait();
            let has_ended = matches!(&outcome, Ok(Some(_)));
            if has_ended && !one.was_killed && memory::has_ended(folder, one.child.id()) {
                one.was_killed = true;
                totals.add("processes that ended without memory", 1);
            }
            match outcome {
                Ok(None) if one.started.elapsed() < options.time + GRACE_TIME => left.push(one),
                Ok(None) => {
                    totals.violations.push(format!("process {} hangs", one.number));
                    one.child.kill().ok();
                    one.child.wait().ok();
                }
                Ok(Some(_)) if one.was_killed && !is_over => {
                    let time = end.saturating_duration_since(Instant::now());
                    match start(options, folder, one.number, time) {
                        Ok(next) => left.push(next),
                        Err(error) => totals.violations.push(format!("cannot start a process: {error}")),
                    }
                }
                Ok(Some(status)) if !status.success() && !one.was_killed => {
                    totals.violations.push(format!("process {} ended with {status}", one.number));
                }
                Ok(Some(_)) => {}
                Err(error) => totals.violations.push(format!("process {}: {error}", one.number)),
            }
        }
        serving = left;
    }
    write_policy(folder, POLICY).ok();
}

/// One fault from outside.
fn inject(folder: &Path, serving: &mut [Serving], totals: &mut Totals, random: &mut Random) {
    let count = serving.len() as u64;
    let chosen = &mut serving[random.below(count) as usize];
    let process = chosen.child.id().cast_signed();
    let name = match random.below(12) {
        0 => {
            chosen.was_killed = true;
            chosen.child.kill().ok();
            "processes killed"
        }
        1 => {
            // SAFETY: our child, which is not reaped yet.
            unsafe { libc::kill(process, libc::SIGSTOP) };
            std::thread::sleep(Duration::from_millis(100));
            // SAFETY: as above.
            unsafe { libc::kill(process, libc::SIGCONT) };
            "processes stopped for a moment"
        }
        2 | 3 => {
            kill_a_worker(process);
            "workers killed from outside"
        }
        4 | 5 => {
            write_policy(folder, random.pick::<&str>(BROKEN)).ok();
            "broken policies"
        }
        6 => {
            // Not atomic: a reader may see half of it.
            fs::write(folder.join("layerzero.yaml"), policy(folder, POLICY)).ok();
            "policies rewritten in place"
        }
        7 | 8 => lockfiles::damage(folder, random),
        _ => break_database(folder, random),
    };
    totals.add(name, 1);
    totals.add("faults from outside", 1);
}

fn kill_a_worker(process: i32) {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let worker =
        children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).next();
    if let Some(worker) = worker.and_then(|id| id.parse().ok()) {
        // SAFETY: takes numbers only; a process that has just ended is not signaled.
        unsafe { libc::kill(worker, libc::SIGKILL) };
    }
}

/// Breaks a database that only one process uses.
fn break_database(folder: &Path, random: &mut Random) -> &'static str {
    // Not the index of the write-ahead log, which is mapped: truncating it ends every process that uses the database.
    let own = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("own-") && !name.ends_with("-shm")
    };
    let files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).filter(own).collect();
    if files.is_empty() {
        return "databases not there yet";
    }
    let path = random.pick(&files).clone();
    match random.below(4) {
        0 => {
            fs::remove_file(path).ok();
            "database files removed"
        }
        1 => {
            fs::write(path, b"this is no database").ok();
            "database files overwritten"
        }
        2 => {
            if let Ok(file) = fs::OpenOptions::new().write(true).open(path) {
                file.set_len(random.below(5000)).ok();
            }
            "database files truncated"
        }
        _ => {
            if let Ok(metadata) = fs::metadata(&path) {
                let mut permissions = metadata.permissions();
                permissions.set_readonly(true);
                fs::set_permissions(&path, permissions).ok();
            }
            "database files made read-only"
        }
    }
}

fn policy(folder: &Path, text: &str) -> String {
    text.replace("FOLDER", &folder.display().to_string())
}

/// Replaces the policy file atomically.
fn write_policy(folder: &Path, text: &str) -> std::io::Result<()> {
    let (path, next) = (folder.join("layerzero.yaml"), folder.join("layerzero.yaml.next"));
    fs::write(&next, policy(folder, text))?;
    fs::rename(next, path)
}

/// Every acknowledged measurement is in the database that only serving processes wrote.
fn check_measurements(folder: &Path, totals: &mut Totals) {
    let acknowledged = fs::read_to_string(folder.join("acknowledged")).unwrap_or_default();
    let path = folder.join("shared.sqlite");
    let mut kernels: BTreeMap<&str, u64> = BTreeMap::new();
    acknowledged.lines().for_each(|kernel| *kernels.entry(kernel).or_default() += 1);
    totals.add("acknowledged measurements", kernels.values().sum());
    if kernels.is_empty() {
        return;
    }
    let opened = PerfDb::open(&path);
    let rows = opened.db.show(&Filter::default(), usize::MAX);
    for acknowledged in kernels.keys() {
        let is_there = |row: &lz_perfdb::Evidence| {
            *acknowledged == format!("{} {:?}", row.key.kernel, row.key.bucket.words())
        };
        if !rows.iter().any(is_there) {
            totals.violations.push(format!("the acknowledged measurement of {acknowledged} is lost"));
        }
    }
    if !matches!(opened.status, OpenStatus::Ready { migrated_from: None }) {
        totals.violations.push(format!("the shared database: {:?}", opened.status));
    }
    let renamed = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in renamed.filter(|name| name.to_string_lossy().starts_with("shared.sqlite.corrupt")) {
        totals.violations.push(format!("the shared database was never damaged, but renamed: {name:?}"));
    }
}

/// Adds up the reports of the processes that ended by themselves.
fn collect(folder: &Path, totals: &mut Totals) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with("report-") {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let Ok(report) = serde_json::from_str::<Value>(&text) else { continue };
        for name in ["calls", "faults", "listed_errors", "wrong_values", "tuned", "worker_restarts"] {
            totals.add(name, report[name].as_u64().unwrap_or(0));
        }
        for violation in report["violations"].as_array().into_iter().flatten() {
            totals.violations.push(violation.to_string());
        }
        totals.add("processes that ended by themselves", 1);
    }
}
