//! The commands of the workspace: `cargo xtask <command>`.

mod codegen;
mod command;
mod cpp;
mod definition;
mod files;
mod format;
mod gpu_bundle;
mod instructions;
mod new_op;
mod oracles;
mod python;
mod scaffold;
mod scenarios;
mod test;
#[cfg(test)]
mod tests;
mod tokenizers;
mod tour;

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  run                         set everything up and take a short tour
  test [STEP]...              everything that must hold; the steps are named as it runs
  test --op NAME              what concerns one operation
  codegen [--check | --diff]  write what is generated from schemas/, or only look
  new-op NAME                 start an operation: attention.linear.decode
  import-definition FILE      a FlashInfer-Bench definition as a schema
  export-definition OP        an operation as a definition: --axes head_dim=128,...
  fmt                         format all hand-written Rust
  bench select [--json]       what deciding costs, with a full house
  bench instructions          how many instructions deciding takes, and how that has changed
  bench scenarios [--json]    what the performance scenarios cost, beside what one would write by hand
  bench python [--json]       what a call from Python costs, beside its peers
  bench cpu [--json]          CPU kernels beside the machine's limits and torch
  bench tuned [--json]        what tuning chooses for the workloads, held against what is best
  bench cpp [--json]          what a call from C++ costs over one from Rust
  bench ipc [--json]          what a call of a kernel in a worker process costs
  bench tokenize [--json]     tokenisation beside other libraries, on one thread or with --two on two
  gpu-bundle                  what a machine with a GPU needs to run the tests and benchmarks for it, in one archive
  onnx-data                   fetch the ONNX node tests and print their folder
  tokenizer-data              fetch real tokenizers and texts and print their folder
  help                        this text";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  because {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace has no root")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["run"] => tour::run(root)?,
        ["test", "--op", name] => test::one_operation(root, name)?,
        ["test", steps @ ..] => test::run(root, steps)?,
        ["codegen"] => codegen::run(root, codegen::Mode::Write)?,
        ["codegen", "--check"] => codegen::run(root, codegen::Mode::Check)?,
        ["codegen", "--diff"] => codegen::run(root, codegen::Mode::Diff)?,
        ["fmt"] => format::run(root, &[])?,
        ["new-op", name] => print!("{}", new_op::run(root, name)?),
        ["import-definition", rest @ ..] => definition::run_import(root, rest)?,
        ["export-definition", rest @ ..] => definition::run_export(root, rest)?,
        ["bench", "select", flags @ ..] => bench(root, "bench-select", flags)?,
        ["bench", "instructions", flags @ ..] => instructions::run(root, flags)?,
        ["bench", "scenarios", flags @ ..] => bench(root, "lz-scenarios", flags)?,
        ["bench", "python", flags @ ..] => python::bench(root, flags)?,
        ["bench", "cpu", flags @ ..] => bench_with_peers(root, "bench-cpu", flags)?,
        ["bench", "tuned", flags @ ..] => python::bench_tuned(root, flags)?,
        ["bench", "cpp", flags @ ..] => bench(root, "bench-cpp", flags)?,
        ["bench", "ipc", flags @ ..] => bench(root, "bench-ipc", flags)?,
        ["bench", "tokenize", flags @ ..] => {
            tokenizers::ensure_tokenizer_data(root)?;
            bench_with_peers(root, "bench-tokenize", flags)?;
        }
        ["tokenizer-data"] => println!("{}", tokenizers::ensure_tokenizer_data(root)?.display()),
        ["gpu-bundle", flags @ ..] => gpu_bundle::run(root, flags)?,
        ["onnx-data"] => println!("{}", oracles::ONNX_NODES.ensure(root)?.join("node").display()),
        [] | ["help" | "--help" | "-h"] => println!("{HELP}"),
        _ => bail!("unknown command: cargo xtask {}\n\n{HELP}", words.join(" ")),
    }
    Ok(())
}

/// Runs a benchmark optimised; what it prints is its own.
fn bench(root: &Path, package: &str, flags: &[&str]) -> Result<()> {
    let arguments = ["run", "--quiet", "--release", "--package", package, "--"];
    command::run(root, "cargo", &[&arguments, flags].concat())
}

/// As [`bench`], with the libraries beside it that nothing else needs to compile.
fn bench_with_peers(root: &Path, package: &str, flags: &[&str]) -> Result<()> {
    let arguments = ["run", "--quiet", "--release", "--package", package, "--features", "peers", "--"];
    command::run(root, "cargo", &[&arguments, flags].concat())
}
