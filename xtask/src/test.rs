//! `cargo xtask test`: all checks and tests that must pass before a change is merged, quick checks first.
//!
//! All steps build in the same profile and the same target folder, so that nothing is built twice.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use lz_schema::diagnostics::{listed, nearest};

use crate::codegen::{self, Mode};
use crate::command;
use crate::{browser, cpp, deny, format, oracles, packages, python, python_packages, scaffold, tokenizers};

/// One named check.
struct Step {
    name: &'static str,
    run: fn(&Path) -> Result<()>,
}

const STEPS: [Step; 19] = [
    Step { name: "format", run: |root| format::run(root, &["--check"]) },
    Step { name: "codegen", run: |root| codegen::run(root, Mode::Check) },
    Step { name: "deny", run: deny::check },
    Step { name: "downloads", run: downloads },
    Step { name: "clippy", run: clippy },
    Step { name: "doc", run: doc },
    Step { name: "onnx-data", run: |root| oracles::ONNX_NODES.ensure(root).map(drop) },
    Step { name: "tokenizer-data", run: |root| tokenizers::ensure_tokenizer_data(root).map(drop) },
    Step { name: "build", run: build },
    Step { name: "python-wheel", run: python::test_wheel },
    Step { name: "packages", run: packages::check },
    Step { name: "rust", run: rust },
    Step { name: "cpp", run: cpp::test },
    Step { name: "new-op", run: scaffold::check },
    Step { name: "python", run: python::test },
    Step { name: "browser", run: browser::test },
    Step { name: "python-torch", run: python::test_torch },
    Step { name: "python-oracles", run: python::test_oracles },
    Step { name: "python-models", run: python::test_models },
];

/// Steps that run in a second process while the others run.
struct Lane {
    steps: &'static [&'static str],
    /// Starts before this step.
    from: &'static str,
    /// Is finished before this step, or at the end.
    to: Option<&'static str>,
}

impl Lane {
    /// Whether its steps use the installed Python package.
    fn needs_package(&self) -> bool {
        self.steps.iter().any(|step| step.starts_with("python"))
    }
}

/// Downloads wait for the network. Most tests of Python use a single process, so three lanes keep two cores busy until the end.
const LANES: [Lane; 3] = [
    Lane { steps: &["downloads", "onnx-data", "tokenizer-data"], from: "clippy", to: Some("build") },
    Lane { steps: &["rust", "cpp", "new-op"], from: "python", to: None },
    Lane { steps: &["python-torch", "python-oracles"], from: "python", to: None },
];

/// Runs the named steps, or all of them, and stops at the first failure.
pub fn run(root: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == *name) {
            bail!("unknown step `{name}`; expected one of {}", listed(STEPS.iter().map(|step| step.name)));
        }
    }
    let start = Instant::now();
    let mut times = Vec::new();
    let mut lanes: Vec<(&Lane, BackgroundSteps)> = Vec::new();
    let in_background = |step: &Step| LANES.iter().any(|lane| lane.steps.contains(&step.name));
    let selected = |step: &&Step| match names {
        [] => !in_background(step),
        names => names.contains(&step.name),
    };
    for step in STEPS.iter().filter(selected) {
        if names.is_empty() {
            for (_, lane) in lanes.extract_if(.., |(lane, _)| lane.to == Some(step.name)) {
                times.push(lane.finish()?);
            }
            for lane in LANES.iter().filter(|lane| lane.from == step.name) {
                if lane.needs_package() {
                    python::install(root)?;
                }
                lanes.push((lane, BackgroundSteps::start(root, lane)?));
            }
        }
        let ((), seconds) = timed(step.name, || (step.run)(root)).with_context(|| {
            format!("step {0} failed; to run only this step: cargo xtask test {0}", step.name)
        })?;
        times.push(format!("{} {seconds:.1} s", step.name));
    }
    for (_, lane) in lanes {
        times.push(lane.finish()?);
    }
    println!("\nall steps passed in {:.1} s: {}", start.elapsed().as_secs_f64(), times.join(", "));
    Ok(())
}

/// The steps of a lane. Their output goes to a log file, which is printed when they are finished.
struct BackgroundSteps {
    child: Child,
    start: Instant,
    name: String,
    log: PathBuf,
}

impl BackgroundSteps {
    fn start(root: &Path, lane: &Lane) -> Result<BackgroundSteps> {
        let name = lane.steps.join(" and ");
        let log = root.join(format!("target/background-{}.log", lane.steps[0]));
        let file = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
        let child = Command::new(std::env::current_exe()?)
            .arg("test")
            .args(lane.steps)
            .envs(lane.needs_package().then_some((python::IS_INSTALLED, "1")))
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting the steps {name}"))?;
        println!("\n== {name}: in the background; their output is in {}", log.display());
        Ok(BackgroundSteps { child, start: Instant::now(), name, log })
    }

    /// Waits for the process and returns a line with its duration.
    fn finish(mut self) -> Result<String> {
        let status = self.child.wait()?;
        print!("{}", fs::read_to_string(&self.log)?);
        ensure!(status.success(), "the steps {} failed in the background ({status})", self.name);
        Ok(format!("{} at most {:.1} s in the background", self.name, self.start.elapsed().as_secs_f64()))
    }
}

impl Drop for BackgroundSteps {
    /// Waits for the process when another step failed: its build would block the next run.
    fn drop(&mut self) {
        // `finish` already waited on the regular path; an error cannot be reported from `drop`.
        let _ = self.child.wait();
    }
}

/// Checks that the generated code of one operation is up to date, and runs the tests whose names contain the operation's.
pub fn one_operation(root: &Path, name: &str) -> Result<()> {
    let catalog = codegen::load(root)?;
    let Some(operation) = catalog.set.get(name) else {
        let names = catalog.set.operations.iter().map(|operation| operation.name.as_str());
        let hint = nearest(name, names).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        bail!("unknown operation `{name}`{hint}");
    };
    timed("codegen", || codegen::run(root, Mode::Check))?;
    let mut arguments = vec!["test", "--package", "lz-ops"];
    // Packages are listed so that no other test suite is built.
    if root.join("tests/conformance/Cargo.toml").is_file() {
        arguments.extend(["--package", "lz-conformance"]);
    }
    let filter = operation.flat_name();
    arguments.extend(["--", &filter]);
    timed("rust", || command::cargo(root, &arguments))?;
    Ok(())
}

/// Runs a step and prints its name, its duration and the CPU time of its programs. Returns the step's result and its duration in
/// seconds.
fn timed<T>(name: &str, run: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    println!("\n== {name}");
    let (start, cpu) = (Instant::now(), cpu_seconds_of_children());
    let result = run()?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = match (cpu, cpu_seconds_of_children()) {
        (Some(before), Some(after)) => format!(" ({:.1} CPU s)", after - before),
        _ => String::new(),
    };
    println!("== {name}: {seconds:.1} s{cpu}");
    Ok((result, seconds))
}

/// CPU time of all programs that this process started and that have ended. Other work on the machine does not change it much.
fn cpu_seconds_of_children() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program is in parentheses and may contain spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(13)?.parse::<f64>().ok()? + fields.get(14)?.parse::<f64>().ok()?;
    // The kernel counts in units of 1/100 s for programs on all platforms that have this file.
    Some(ticks / 100.0)
}

fn clippy(root: &Path) -> Result<()> {
    command::cargo(root, &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])
}

/// Builds the documentation of all libraries; broken links and other rustdoc warnings are errors.
///
/// Runs with the driver and the arguments of [`clippy`], so that cargo reuses the metadata that `clippy` wrote instead of checking the
/// workspace again.
pub fn doc(root: &Path) -> Result<()> {
    let arguments = ["doc", "--no-deps", "--workspace", "--lib", "--keep-going"];
    let driver = clippy_driver(root)?;
    let environment = [
        ("RUSTDOCFLAGS", Path::new("--deny warnings")),
        ("RUSTC_WORKSPACE_WRAPPER", &driver),
        // As `cargo clippy` passes `--deny warnings` to the driver.
        ("CLIPPY_ARGS", Path::new("--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__")),
    ];
    command::build(root, "cargo", &arguments, &environment)
}

/// The driver that `cargo clippy` runs, with the path that it uses: cargo identifies check results by this path.
fn clippy_driver(root: &Path) -> Result<PathBuf> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root).output()?;
    ensure!(sysroot.status.success(), "`rustc --print sysroot` failed ({})", sysroot.status);
    let driver = Path::new(String::from_utf8(sysroot.stdout)?.trim()).join("bin/clippy-driver");
    driver.canonicalize().with_context(|| format!("{} does not exist; install clippy", driver.display()))
}

/// Installs all Python packages and programs of the later steps.
fn downloads(root: &Path) -> Result<()> {
    python_packages::install_packages(root)?;
    oracles::FLASHINFER_REFERENCES.ensure(root)?;
    oracles::VLLM.ensure(root)?;
    oracles::SGLANG.ensure(root)?;
    browser::ensure();
    Ok(())
}

/// Builds what the later steps run, with all cores: cargo runs one build at a time.
fn build(root: &Path) -> Result<()> {
    command::cargo(root, &["test", "--workspace", "--no-run"])?;
    python::install(root).map(drop)
}

fn rust(root: &Path) -> Result<()> {
    command::cargo(root, &["test", "--workspace"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_program_that_ended_counts() {
        let before = cpu_seconds_of_children().unwrap();
        let status = Command::new("python3").args(["-c", "sum(range(30_000_000))"]).status().unwrap();
        assert!(status.success());
        assert!(cpu_seconds_of_children().unwrap() > before);
    }
}
