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
use crate::{browser, cpp, deny, format, oracles, python, scaffold, tokenizers};

/// One named check.
struct Step {
    name: &'static str,
    run: fn(&Path) -> Result<()>,
}

const STEPS: [Step; 16] = [
    Step { name: "format", run: |root| format::run(root, &["--check"]) },
    Step { name: "codegen", run: |root| codegen::run(root, Mode::Check) },
    Step { name: "deny", run: deny::check },
    Step { name: "clippy", run: clippy },
    Step { name: "doc", run: doc },
    Step { name: "onnx-data", run: |root| oracles::ONNX_NODES.ensure(root).map(drop) },
    Step { name: "tokenizer-data", run: |root| tokenizers::ensure_tokenizer_data(root).map(drop) },
    Step { name: "rust", run: rust },
    Step { name: "cpp", run: cpp::test },
    Step { name: "python", run: python::test },
    Step { name: "browser", run: browser::test },
    Step { name: "python-wheel", run: python::test_wheel },
    Step { name: "python-torch", run: python::test_torch },
    Step { name: "python-oracles", run: python::test_oracles },
    Step { name: "python-models", run: python::test_models },
    Step { name: "new-op", run: scaffold::check },
];

/// Steps that run in a second process, in parallel with the steps from [`BACKGROUND_START`] on. They mostly compile, while the
/// others run a single Python process each and would leave a core idle.
const BACKGROUND: [&str; 2] = ["cpp", "new-op"];
const BACKGROUND_START: &str = "python";

/// Runs the named steps, or all of them, and stops at the first failure.
pub fn run(root: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == *name) {
            bail!("unknown step `{name}`; expected one of {}", listed(STEPS.iter().map(|step| step.name)));
        }
    }
    let start = Instant::now();
    let mut times = Vec::new();
    let mut background = None;
    let selected = |step: &&Step| match names {
        [] => !BACKGROUND.contains(&step.name),
        names => names.contains(&step.name),
    };
    for step in STEPS.iter().filter(selected) {
        if names.is_empty() && step.name == BACKGROUND_START {
            background = Some(timed("prepare-background", || BackgroundSteps::start(root))?.0);
        }
        let ((), seconds) = timed(step.name, || (step.run)(root)).with_context(|| {
            format!("step {0} failed; to run only this step: cargo xtask test {0}", step.name)
        })?;
        times.push(format!("{} {seconds:.1} s", step.name));
    }
    if let Some(background) = background {
        background.finish()?;
        times.push(format!("{} in the background", BACKGROUND.join(" and ")));
    }
    println!("\nall steps passed in {:.1} s: {}", start.elapsed().as_secs_f64(), times.join(", "));
    Ok(())
}

/// The steps [`BACKGROUND`]. Their output goes to a log file, which is printed when they are finished.
struct BackgroundSteps {
    child: Child,
    log: PathBuf,
}

impl BackgroundSteps {
    fn start(root: &Path) -> Result<BackgroundSteps> {
        // The Python package is built first because Cargo runs one build at a time; `new-op` also calls its operation from torch.
        python::install(root)?;
        python::ensure_torch(root)?;
        let log = root.join("target/background.log");
        let file = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
        let child = Command::new(std::env::current_exe()?)
            .arg("test")
            .args(BACKGROUND)
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting the steps {}", BACKGROUND.join(", ")))?;
        println!("{} run in the background; their output is in {}", BACKGROUND.join(" and "), log.display());
        Ok(BackgroundSteps { child, log })
    }

    fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        print!("{}", fs::read_to_string(&self.log)?);
        ensure!(status.success(), "the background process failed ({status})");
        Ok(())
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

/// Runs a step and prints its name and duration. Returns the step's result and its duration in seconds.
fn timed<T>(name: &str, run: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    println!("\n== {name}");
    let start = Instant::now();
    let result = run()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("== {name}: {seconds:.1} s");
    Ok((result, seconds))
}

fn clippy(root: &Path) -> Result<()> {
    command::cargo(root, &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])
}

/// Builds the documentation of all libraries; broken links and other rustdoc warnings are errors.
fn doc(root: &Path) -> Result<()> {
    let arguments = ["doc", "--no-deps", "--workspace", "--lib", "--keep-going"];
    command::build(root, "cargo", &arguments, &[("RUSTDOCFLAGS", Path::new("--deny warnings"))])
}

fn rust(root: &Path) -> Result<()> {
    command::cargo(root, &["test", "--workspace"])
}
