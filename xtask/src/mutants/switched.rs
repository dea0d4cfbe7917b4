//! Runs all mutants with one build: minutes of compiling instead of a day.
//!
//! The sources are copied to `target/mutants/switched/tree` with every mutant behind a switch, which `LZ_MUTANT` turns on. What does not
//! compile is left out, as cargo-mutants does. Then the tests of the mutant's package run for each number until one fails. Mutants of
//! constants and of `const fn` cannot be switched; cargo-mutants itself has to run them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::list::{self, Genre, Mutant};
use super::switches;

/// Tests that take longer run last.
const SLOW: Duration = Duration::from_millis(400);

/// Tests of a mutant that take this many times as long as without it never end.
const TIMEOUT_FACTOR: u32 = 8;

/// Appended to the copy of `lz-core`. The function does not allocate: tests count allocations.
const SWITCH: &str = r#"
extern crate self as lz_core;

#[doc(hidden)]
#[allow(missing_docs, unsafe_code)]
pub fn mutant(number: u32) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);
    let mut active = ACTIVE.load(Ordering::Relaxed);
    if active == u32::MAX {
        active = unsafe {
            let text = libc::getenv(c"LZ_MUTANT".as_ptr());
            if text.is_null() { 0 } else { libc::atoi(text) as u32 }
        };
        ACTIVE.store(active, Ordering::Relaxed);
    }
    active == number
}

#[doc(hidden)]
#[allow(missing_docs, missing_debug_implementations)]
#[derive(Clone)]
pub enum Either<Changed, Original> {
    Changed(Changed),
    Original(Original),
}

impl<Item, Changed: Iterator<Item = Item>, Original: Iterator<Item = Item>> Iterator for Either<Changed, Original> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        match self {
            Either::Changed(items) => items.next(),
            Either::Original(items) => items.next(),
        }
    }
}
"#;

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
    let tree = root.join("target/mutants/switched/tree");
    copy_tree(root, &tree)?;
    let mut build =
        Build { root, tree: &tree, mutants: &mutants, unviable: BTreeSet::new(), left: BTreeSet::new() };
    let programs = build.compile()?;
    let Build { unviable, left, .. } = build;
    let numbers: Vec<(u32, &Mutant)> = numbered(&mutants)
        .filter(|(number, _)| !unviable.contains(number) && !left.contains(number))
        .collect();
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

/// The files and lines that an error is about.
fn primary(spans: &[Value]) -> impl Iterator<Item = (&str, usize)> {
    let primary = spans.iter().filter(|span| span["is_primary"] == true);
    primary.filter_map(|span| Some((span["file_name"].as_str()?, span["line_start"].as_u64()? as usize)))
}

fn numbered(mutants: &[Mutant]) -> impl Iterator<Item = (u32, &Mutant)> {
    (1..).zip(mutants)
}

/// Copies the files that git knows or would add; files that are the same keep their time, so that nothing is built twice.
fn copy_tree(root: &Path, tree: &Path) -> Result<()> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .context("could not start git")?;
    ensure!(output.status.success(), "git ls-files failed");
    for name in String::from_utf8(output.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root.join(name), tree.join(name));
        if let Ok(target) = fs::read_link(&from) {
            if fs::symlink_metadata(&to).is_err() {
                fs::create_dir_all(to.parent().context("a link has a folder")?)?;
                std::os::unix::fs::symlink(target, &to)?;
            }
        } else if from.is_file() {
            write_if_changed(&to, &fs::read(&from).with_context(|| format!("reading {}", from.display()))?)?;
        }
    }
    Ok(())
}

fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|existing| existing == content) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

/// Compiles the copy, and finds out which mutants do not compile.
struct Build<'m> {
    root: &'m Path,
    tree: &'m Path,
    mutants: &'m [Mutant],
    unviable: BTreeSet<u32>,
    left: BTreeSet<u32>,
}

impl Build<'_> {
    /// The test programs by package.
    fn compile(&mut self) -> Result<BTreeMap<String, Vec<Program>>> {
        let packages: BTreeSet<&str> = self.mutants.iter().map(|mutant| &*mutant.package).collect();
        let packages: Vec<&str> = packages.into_iter().flat_map(|package| ["-p", package]).collect();
        loop {
            self.write()?;
            let (is_ok, messages) = self.cargo(&[&["check", "--lib"], &*packages].concat())?;
            if is_ok {
                break;
            }
            let before = self.unviable.len() + self.left.len();
            let others = self.leave_out(&messages)?;
            let found = self.unviable.len() + self.left.len() - before;
            println!("{found} mutants do not compile");
            ensure!(found > 0, "the copy does not compile:\n{}", others.join("\n"));
        }
        let (is_ok, messages) =
            self.cargo(&[&["test", "--no-run", "--lib", "--tests"], &*packages].concat())?;
        ensure!(is_ok, "the tests of the copy do not compile");
        let mut programs: BTreeMap<String, Vec<Program>> = BTreeMap::new();
        for message in &messages {
            if let (Some(path), Some(manifest)) =
                (message["executable"].as_str(), message["manifest_path"].as_str())
            {
                let folder = Path::new(manifest).parent().context("a package has a folder")?;
                // Folders of packages with mutants have the names of the packages.
                let package =
                    folder.file_name().context("a folder has a name")?.to_string_lossy().into_owned();
                programs
                    .entry(package)
                    .or_default()
                    .push(Program { path: path.into(), folder: folder.into() });
            }
        }
        Ok(programs)
    }

    /// Writes the sources with all mutants that may still compile.
    fn write(&mut self) -> Result<()> {
        let mut by_file: BTreeMap<&str, Vec<switches::Numbered<'_>>> = BTreeMap::new();
        for (number, mutant) in numbered(self.mutants) {
            let of_file = by_file.entry(&mutant.file).or_default();
            if !self.unviable.contains(&number) && !self.left.contains(&number) {
                of_file.push((number, mutant));
            }
        }
        for (file, mutants) in by_file {
            let source =
                fs::read_to_string(self.root.join(file)).with_context(|| format!("reading {file}"))?;
            let (text, without) = switches::insert(&source, &mutants).with_context(|| file.to_owned())?;
            self.unviable.extend(without);
            write_if_changed(&self.tree.join(file), text.as_bytes())?;
        }
        let library = fs::read_to_string(self.root.join("lz-core/src/lib.rs"))?;
        write_if_changed(&self.tree.join("lz-core/src/lib.rs"), (library + SWITCH).as_bytes())
    }

    /// Leaves out the mutants that errors are about; returns other errors.
    fn leave_out(&mut self, messages: &[Value]) -> Result<Vec<String>> {
        let mut others = Vec::new();
        for message in messages.iter().map(|message| &message["message"]) {
            let spans = message["spans"].as_array().filter(|spans| !spans.is_empty());
            let Some(spans) = spans.filter(|_| message["level"] == "error") else { continue };
            let mut part = None;
            for span in spans.iter().filter(|span| span["is_primary"] == true).chain(spans) {
                let (Some(file), Some(start)) = (span["file_name"].as_str(), span["byte_start"].as_u64())
                else {
                    continue;
                };
                let Ok(text) = fs::read_to_string(self.tree.join(file)) else { continue };
                part = part.or_else(|| switches::part_of(&text, &(start as usize..start as usize)));
            }
            match part {
                Some(part) if part.is_change => drop(self.unviable.insert(part.number)),
                Some(part) => drop(self.left.insert(part.number)),
                None if message["code"]["code"] == "E0004" => self.leave_out_arms(spans)?,
                None if self.leave_out_iterators(spans) => {}
                None => others.extend(message["rendered"].as_str().map(str::to_owned)),
            }
        }
        Ok(others)
    }

    /// A match whose arms are all needed: none of them can be deleted.
    fn leave_out_arms(&mut self, spans: &[Value]) -> Result<()> {
        for (file, line) in primary(spans) {
            // The copy has the lines of the original.
            let source =
                fs::read_to_string(self.root.join(file)).with_context(|| format!("reading {file}"))?;
            let lines = switches::lines_of_match(&source, line)?;
            let arms =
                numbered(self.mutants).filter(|(_, one)| one.genre == Genre::MatchArm && one.file == file);
            let arms = arms.filter(|(_, one)| lines.contains(&one.start.line)).map(|(number, _)| number);
            self.unviable.extend(arms);
        }
        Ok(())
    }

    /// The type of an iterator that does not fit is an error of its function: all mutants of the nearest one are left to
    /// cargo-mutants. Returns whether there are any.
    fn leave_out_iterators(&mut self, spans: &[Value]) -> bool {
        let before = self.left.len();
        for (file, line) in primary(spans) {
            let iterators = || numbered(self.mutants).filter(|(_, one)| one.returns_impl && one.file == file);
            let nearest = iterators().map(|(_, one)| one.start.line).min_by_key(|at| at.abs_diff(line));
            let of_it = iterators().filter(|(_, one)| Some(one.start.line) == nearest);
            self.left.extend(of_it.map(|(number, _)| number));
        }
        self.left.len() > before
    }

    /// Runs cargo in the copy: whether it succeeded, and its messages.
    fn cargo(&self, arguments: &[&str]) -> Result<(bool, Vec<Value>)> {
        let output = Command::new("cargo")
            .args(arguments)
            .arg("--message-format=json")
            .env("RUSTFLAGS", "--cap-lints=warn")
            .env("CARGO_TARGET_DIR", self.root.join("target/mutants/switched/target"))
            .current_dir(self.tree)
            .stderr(Stdio::null())
            .output()
            .context("could not start cargo")?;
        let messages = String::from_utf8(output.stdout)?;
        let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok((output.status.success(), messages))
    }
}

/// A test program.
#[derive(Clone)]
struct Program {
    path: PathBuf,
    /// The folder of its package.
    folder: PathBuf,
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
    runs: Vec<(Program, Vec<String>)>,
    timeout: Duration,
}

impl Suite {
    /// Runs all tests without a mutant: they must pass.
    fn measure(programs: Vec<Program>) -> Result<Suite> {
        let (mut fast, mut slow, started) = (Vec::new(), Vec::new(), Instant::now());
        for program in programs {
            let output = program
                .with(0, &["-Zunstable-options".to_owned(), "--report-time".to_owned()])
                .env("RUSTC_BOOTSTRAP", "1")
                .output()?;
            let path = program.path.display();
            ensure!(output.status.success(), "the tests fail without a mutant: {path}");
            let output = String::from_utf8_lossy(&output.stdout).into_owned();
            let names: Vec<String> = output.lines().filter_map(slow_test).collect();
            if !names.is_empty() {
                slow.push((program.clone(), [vec!["--exact".to_owned()], names.clone()].concat()));
            }
            fast.push((program, names.into_iter().flat_map(|name| ["--skip".to_owned(), name]).collect()));
        }
        let timeout = (started.elapsed() * TIMEOUT_FACTOR).max(Duration::from_secs(60));
        Ok(Suite { runs: [fast, slow].concat(), timeout })
    }

    fn judge(&self, number: u32) -> Result<Outcome> {
        for (program, arguments) in &self.runs {
            let child =
                program.with(number, arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            match wait(child, self.timeout)? {
                Outcome::Missed => {}
                outcome => return Ok(outcome),
            }
        }
        Ok(Outcome::Missed)
    }
}

/// The name of a slow test in a line such as `test name ... ok <1.234s>`.
fn slow_test(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ok <")?;
    let seconds: f64 = rest.trim_end_matches("s>").parse().ok()?;
    (seconds > SLOW.as_secs_f64()).then(|| name.to_owned())
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
