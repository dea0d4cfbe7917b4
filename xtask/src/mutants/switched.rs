//! Runs all mutants with one build: minutes of compiling instead of a day.
//!
//! The sources are copied to `target/mutants/switched/tree` with every mutant behind a switch, which `LZ_MUTANT` turns on. What does not
//! compile is left out, as cargo-mutants does. Then the tests of the mutant's package run for each number until one fails. Mutants of
//! constants cannot be switched; cargo-mutants itself has to run them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::build::{Build, Program, numbered};
use super::list::{self, Mutant};

/// Tests that take longer run last.
const SLOW: Duration = Duration::from_millis(400);

/// Tests of a mutant that take this many times as long as one after another without it never end, if that is more than
/// [`MIN_TIMEOUT`].
const TIMEOUT_FACTOR: u32 = 3;

const MIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What the tests say about a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Caught,
    NeverEnded,
    Missed,
}

/// The outcome of all mutants.
pub struct Outcomes {
    pub switched: Vec<(Mutant, Outcome)>,
    /// Mutants that do not compile.
    pub unviable: usize,
    /// Mutants that cargo-mutants has to run.
    pub left: Vec<Mutant>,
}

/// Runs the mutants that `flags` of cargo-mutants select.
pub fn run(root: &Path, flags: &[&str]) -> Result<Outcomes> {
    let mutants = list::mutants(root, flags)?;
    let mut build = Build::new(root, &mutants)?;
    let programs = build.compile()?;
    let (numbers, Build { unviable, left, .. }) = (build.present(), build);
    println!(
        "{} mutants in one build; {} do not compile, {} cannot be switched",
        numbers.len(),
        unviable.len(),
        left.len()
    );
    let suites = programs.into_iter().map(|(package, programs)| Ok((package, Suite::measure(programs)?)));
    let suites: BTreeMap<String, Suite> = suites.collect::<Result<_>>()?;
    let left =
        numbered(&mutants).filter(|(number, _)| left.contains(number)).map(|(_, one)| one.clone()).collect();
    Ok(Outcomes { switched: run_all(&suites, &numbers)?, unviable: unviable.len(), left })
}

impl Program {
    /// Runs tests with a mutant, as cargo does.
    fn with(&self, number: u32, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .envs([("LZ_MUTANT", number.to_string()), ("PROPTEST_CASES", "16".to_owned())])
            .envs([("INSTA_UPDATE", "no"), ("PROPTEST_FAILURE_PERSISTENCE", "off")])
            .process_group(0);
        command
    }
}

/// The tests of a package, fast ones first.
struct Suite {
    runs: Vec<Run>,
}

/// Some tests of a program.
struct Run {
    program: Program,
    arguments: Vec<String>,
    timeout: Duration,
}

impl Suite {
    /// Runs all tests without a mutant: they must pass.
    fn measure(programs: Vec<Program>) -> Result<Suite> {
        let (mut fast, mut slow) = (Vec::new(), Vec::new());
        for program in programs {
            let output = program
                .with(0, &["-Zunstable-options".to_owned(), "--report-time".to_owned()])
                .env("RUSTC_BOOTSTRAP", "1")
                .output()?;
            let path = program.path.display();
            ensure!(output.status.success(), "the tests fail without a mutant: {path}");
            let output = String::from_utf8_lossy(&output.stdout).into_owned();
            let (slow_tests, fast_tests): (Vec<_>, Vec<_>) =
                output.lines().filter_map(timed_test).partition(|(_, time)| *time > SLOW);
            let timeout = |tests: &[(String, Duration)]| {
                let time: Duration = tests.iter().map(|(_, time)| *time).sum();
                (time * TIMEOUT_FACTOR).max(MIN_TIMEOUT)
            };
            let names: Vec<String> = slow_tests.iter().map(|(name, _)| name.clone()).collect();
            if !names.is_empty() {
                let arguments = [vec!["--exact".to_owned()], names.clone()].concat();
                slow.push(Run { program: program.clone(), arguments, timeout: timeout(&slow_tests) });
            }
            let arguments = names.into_iter().flat_map(|name| ["--skip".to_owned(), name]).collect();
            fast.push(Run { program, arguments, timeout: timeout(&fast_tests) });
        }
        fast.extend(slow);
        Ok(Suite { runs: fast })
    }

    fn judge(&self, number: u32) -> Result<Outcome> {
        for Run { program, arguments, timeout } in &self.runs {
            let child =
                program.with(number, arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            match wait(child, *timeout)? {
                Outcome::Missed => {}
                outcome => return Ok(outcome),
            }
        }
        Ok(Outcome::Missed)
    }
}

/// The name and the time of a test in a line such as `test name ... ok <1.234s>`.
fn timed_test(line: &str) -> Option<(String, Duration)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ok <")?;
    let seconds: f64 = rest.trim_end_matches("s>").parse().ok()?;
    Some((name.to_owned(), Duration::try_from_secs_f64(seconds).ok()?))
}

/// Waits for the first failed test, the end, or too long.
fn wait(mut child: Child, timeout: Duration) -> Result<Outcome> {
    let stdout = child.stdout.take().context("the output is piped")?;
    let (send, receive) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let has_failure =
            BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.ends_with("... FAILED"));
        // The receiver is gone after the timeout.
        let _ = send.send(has_failure);
    });
    let ended = receive.recv_timeout(timeout);
    let outcome = match ended {
        Ok(false) if child.wait()?.success() => Outcome::Missed,
        Ok(_) => Outcome::Caught,
        Err(_) => Outcome::NeverEnded,
    };
    if outcome != Outcome::Missed {
        // The tests may have started processes.
        let _ = Command::new("kill")
            .args(["-KILL", "--", &format!("-{}", child.id())])
            .stderr(Stdio::null())
            .status();
        child.wait()?;
    }
    reader.join().map_err(|_| anyhow::anyhow!("reading the output panicked"))?;
    Ok(outcome)
}

/// Judges all mutants, on all cores.
fn run_all(suites: &BTreeMap<String, Suite>, mutants: &[(u32, &Mutant)]) -> Result<Vec<(Mutant, Outcome)>> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some((number, mutant)) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let suite =
                suites.get(&mutant.package).with_context(|| format!("{} has no tests", mutant.package))?;
            let outcome = suite.judge(*number)?;
            let mut outcomes = outcomes.lock().map_err(|_| anyhow::anyhow!("another thread panicked"))?;
            outcomes.push(((*mutant).clone(), outcome));
            if outcome != Outcome::Caught {
                println!(
                    "{}: {}",
                    if outcome == Outcome::Missed { "survived" } else { "never ended" },
                    mutant.name
                );
            }
            if outcomes.len() % 100 == 0 {
                println!("{} of {} mutants", outcomes.len(), mutants.len());
            }
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread panicked"),
        })
    })?;
    outcomes.into_inner().map_err(|_| anyhow::anyhow!("a thread panicked"))
}
