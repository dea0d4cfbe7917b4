//! `cargo xtask fuzz`: runs the fuzz targets of `tests/fuzz` with coverage guidance.
//!
//! libFuzzer comes with bolero as source. The compiler instruments everything with the passes of LLVM that libFuzzer reads; they are part
//! of the stable compiler. The target triple is given, so that build scripts and procedural macros are not instrumented.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command;

const USAGE: &str = "expected: cargo xtask fuzz [TARGET]... [--seconds S], or cargo xtask fuzz --build";

/// Instrumentation that libFuzzer reads: counters of edges, their addresses, operands of comparisons and the depth of the stack.
const FLAGS: [&str; 8] = [
    "--cfg=fuzzing",
    "--cfg=fuzzing_libfuzzer",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
];

/// Time of each target without `--seconds`.
const SECONDS: u64 = 60;

/// Builds the program and runs the targets, or prints how to run them elsewhere.
pub fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    if arguments == ["--build"] {
        let program = build(root)?;
        println!("{}", program.display());
        println!("run it with: {} TARGET CORPUS... -max_total_time=SECONDS", program.display());
        println!("the first folder receives new inputs; the seeds are in tests/fuzz/corpus/TARGET");
        return Ok(());
    }
    let (mut selected, mut seconds, mut rest) = (Vec::new(), SECONDS, arguments.iter());
    while let Some(argument) = rest.next() {
        match *argument {
            "--seconds" => {
                let text = rest.next().context(USAGE)?;
                seconds = text.parse().with_context(|| format!("`--seconds {text}`: {USAGE}"))?;
            }
            flag if flag.starts_with('-') => bail!("unknown option `{flag}`; {USAGE}"),
            name => selected.push(name.to_owned()),
        }
    }
    let program = build(root)?;
    let known = targets(&program)?;
    if let Some(unknown) = selected.iter().find(|name| !known.contains(name)) {
        bail!("unknown target `{unknown}`; expected one of {}", known.join(", "));
    }
    for target in if selected.is_empty() { &known } else { &selected } {
        println!("\n== fuzz {target} for {seconds} s");
        fuzz(root, &program, target, seconds)?;
    }
    Ok(())
}

/// Builds the instrumented program and returns its path.
fn build(root: &Path) -> Result<PathBuf> {
    let triple = host()?;
    let folder = root.join("target/fuzz");
    let arguments = ["build", "--package", "lz-fuzz", "--features", "coverage", "--profile", "fuzz"];
    let target = ["--target", &triple, "--target-dir", "target/fuzz"];
    let flags = FLAGS.join(" ");
    command::build(root, "cargo", &[&arguments[..], &target].concat(), &[("RUSTFLAGS", Path::new(&flags))])?;
    Ok(folder.join(triple).join("fuzz/lz-fuzz"))
}

/// The target triple of this machine.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("could not start rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` does not name the host")?.to_owned())
}

fn targets(program: &Path) -> Result<Vec<String>> {
    let output =
        Command::new(program).output().with_context(|| format!("could not start {}", program.display()))?;
    ensure!(output.status.success(), "{} failed ({})", program.display(), output.status);
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// Runs one target. New inputs go to `target/fuzz/corpus`, an input with a finding to `target/fuzz/findings`.
fn fuzz(root: &Path, program: &Path, target: &str, seconds: u64) -> Result<()> {
    let seeds = root.join("tests/fuzz/corpus").join(target);
    let found = root.join("target/fuzz/corpus").join(target);
    let findings = root.join("target/fuzz/findings");
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&findings)?;
    let arguments = [
        target.to_owned(),
        found.display().to_string(),
        seeds.display().to_string(),
        format!("-max_total_time={seconds}"),
        format!("-artifact_prefix={}/{target}-", findings.display()),
        "-timeout=25".to_owned(),
        "-rss_limit_mb=4096".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let name = program.display().to_string();
    command::run(root, &name, &arguments).with_context(|| {
        format!(
            "{target} has a finding in {}; reproduce it with: cargo run -p lz-fuzz -- {target} FILE",
            findings.display()
        )
    })
}
