//! `cargo xtask test`: everything that must hold before a change lands, quick checks first.
//!
//! All steps build in the same profile and the same target folder, so nothing is built twice. The steps with runners of
//! their own come last: what they count stands at the end of the output.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use lz_schema::diagnostics::{listed, nearest};

use crate::codegen::{self, Mode};
use crate::command;
use crate::{cpp, format, oracles, python, scaffold, tokenizers};

/// One thing that must hold.
struct Step {
    name: &'static str,
    run: fn(&Path) -> Result<()>,
}

const STEPS: [Step; 13] = [
    Step { name: "format", run: |root| format::run(root, &["--check"]) },
    Step { name: "codegen", run: |root| codegen::run(root, Mode::Check) },
    Step { name: "clippy", run: clippy },
    Step { name: "onnx-data", run: |root| oracles::ONNX_NODES.ensure(root).map(drop) },
    Step { name: "tokenizer-data", run: |root| tokenizers::ensure_tokenizer_data(root).map(drop) },
    Step { name: "rust", run: rust },
    Step { name: "cpp", run: cpp::test },
    Step { name: "python", run: python::test },
    Step { name: "python-wheel", run: python::test_wheel },
    Step { name: "python-torch", run: python::test_torch },
    Step { name: "python-oracles", run: python::test_oracles },
    Step { name: "python-models", run: python::test_models },
    Step { name: "new-op", run: scaffold::check },
];

/// The step that compiles runs beside those that do not, from `python-torch` on: they are one process of Python each, and would
/// leave a core idle.
const BESIDE: &str = "new-op";
const FROM: &str = "python-torch";

/// Runs the named steps, or all of them; the first that fails ends the run.
pub fn run(root: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == *name) {
            bail!("`{name}` is not a step; there are {}", listed(STEPS.iter().map(|step| step.name)));
        }
    }
    let start = Instant::now();
    let mut times = Vec::new();
    let mut beside = None;
    for step in STEPS.iter().filter(|step| names.is_empty() || names.contains(&step.name)) {
        if names.is_empty() && step.name == FROM {
            // It calls the new operation from torch too, where that is installed.
            python::ensure_torch(root)?;
            beside = Some(Beside::start(root)?);
        }
        let run = || match beside.take_if(|_| step.name == BESIDE) {
            Some(started) => started.finish(),
            None => (step.run)(root),
        };
        let seconds = timed(step.name, run)
            .with_context(|| format!("failed; to see it alone: cargo xtask test {}", step.name))?;
        times.push(format!("{} {seconds:.1} s", step.name));
    }
    println!("\nall hold after {:.1} s: {}", start.elapsed().as_secs_f64(), times.join(", "));
    Ok(())
}

/// A step that runs while others do; what it says is kept until they are through.
struct Beside {
    child: Child,
    said: PathBuf,
}

impl Beside {
    fn start(root: &Path) -> Result<Beside> {
        let said = root.join(format!("target/{BESIDE}.log"));
        let file = File::create(&said).with_context(|| format!("writing {}", said.display()))?;
        let child = Command::new(std::env::current_exe()?)
            .args(["test", BESIDE])
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting the step {BESIDE}"))?;
        println!("\n== {BESIDE} begins beside the following; what it says comes at the end");
        Ok(Beside { child, said })
    }

    fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        print!("{}", fs::read_to_string(&self.said)?);
        ensure!(status.success(), "the step ended with {status}");
        Ok(())
    }
}

impl Drop for Beside {
    /// Where a step fails meanwhile, this one is waited for: what it has begun to build would block the next run.
    fn drop(&mut self) {
        // Waiting again for a process that has ended costs nothing, and there is nobody to tell.
        let _ = self.child.wait();
    }
}

/// What concerns one operation: its generated code is fresh, and every test that bears its name passes.
pub fn one_operation(root: &Path, name: &str) -> Result<()> {
    let catalogue = codegen::load(root)?;
    let Some(operation) = catalogue.set.get(name) else {
        let names = catalogue.set.operations.iter().map(|operation| operation.name.as_str());
        let hint = nearest(name, names).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        bail!("there is no operation `{name}`{hint}");
    };
    timed("codegen", || codegen::run(root, Mode::Check))?;
    let mut arguments = vec!["test", "--package", "lz-ops"];
    // The suite over all kernels is a package of its own, named here so that only it is built.
    if root.join("tests/conformance/Cargo.toml").is_file() {
        arguments.extend(["--package", "lz-conformance"]);
    }
    let filter = operation.flat_name();
    arguments.extend(["--", &filter]);
    timed("rust", || command::run(root, "cargo", &arguments))?;
    Ok(())
}

/// Says what begins and how long it took.
fn timed(name: &str, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    println!("\n== {name}");
    let start = Instant::now();
    run()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("== {name}: {seconds:.1} s");
    Ok(seconds)
}

fn clippy(root: &Path) -> Result<()> {
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    command::run(root, "cargo", &arguments)
}

fn rust(root: &Path) -> Result<()> {
    command::run(root, "cargo", &["test", "--workspace"])
}
