//! Development commands of the workspace: `cargo xtask <command>`.

mod aarch64;
mod bridge;
mod browser;
mod codegen;
mod command;
mod conan;
mod contracts;
mod cpp;
mod definition;
mod deny;
mod dist;
mod docs;
mod files;
mod format;
mod fuzz;
mod gpu_bundle;
mod instructions;
mod metadata;
mod miri;
mod mutants;
mod new_op;
mod notices;
mod oracles;
mod packages;
mod progress;
mod python;
mod python_packages;
mod sanitize;
mod sbom;
mod scaffold;
mod scenarios;
mod test;
#[cfg(test)]
mod tests;
mod tokenizers;
mod tour;
mod vcpkg;

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  run                         build and install everything, then run the tour example
  test [STEP]...              run all checks and tests, or only the named steps
  test --op NAME              check the generated code of one operation and run its tests
  fuzz [TARGET]...            search with coverage guidance; --seconds S for each target; --build only builds
  codegen [--check | --diff]  write the files generated from schemas/; or fail if one is stale; or print the differences
  new-op NAME                 create the schema and reference of a new operation, e.g. attention.ring.decode
  import-definition FILE      convert a FlashInfer-Bench definition to a schema
  export-definition OP        convert an operation to a FlashInfer-Bench definition: --axes head_dim=128,...
  chaos [--seed N] [--seconds S]  inject faults into serving processes and check that they go on
  candle                      test the example crate that runs operations on tensors of candle
  miri [FILTER]               run the tests of tensors and arguments under Miri, if the toolchain has it
  mutants [FLAGS]             change selection, cache, health and checks, and expect tests to fail; --switched builds all mutants at once; flags of cargo mutants
  sanitize [rust|python]      run the Python extension and Rust tests under AddressSanitizer
  aarch64 [build | test | neon]  build for aarch64 Linux and run the tests under qemu, with neon only those of the NEON kernels; packages come from Debian, --mirror URL names its mirror; `aarch64 cargo ...` runs cargo there
  fmt                         format all hand-written Rust
  bench select [--json]       selection latency with all kernels registered
  bench instructions          instructions per selection, and the change since the last run
  bench scenarios [--json]    latency of the performance scenarios, compared with hand-written code
  bench python [--json]       call overhead from Python, compared with other libraries
  bench graph [--json]        compiled models, compared with torch, inductor, ONNX Runtime and OpenVINO
  bench cpu [--json]          throughput of the CPU kernels, compared with hardware limits and torch
  bench tuned [--json]        kernels that tuning selects for the workloads, compared with the fastest
  bench cpp [--json]          call overhead from C++, compared with Rust
  bench ipc [--json]          call overhead of a kernel in a worker process
  bench tokenizers [--json]   first passes from Python, compared with fastokens, gigatoken and tokenizers 1.0; --two uses all cores
  bench tokenize [--json]     tokenization throughput, compared with other libraries; --two uses two threads, --cold measures first passes, --load loading and first calls
  notices [--check]           write the licenses of third-party packages from Cargo.lock; or fail if the file is stale
  python-versions             install the newest Python packages that the tests allow, and keep their versions
  docs                        build the documentation site into target/site and check its links
  dist                        build wheel, source distribution, C++ libraries and crates for a release into dist/
  gpu-bundle                  pack the GPU tests and benchmarks, with their wheels, into one archive
  onnx-data                   download the ONNX node tests and print their folder
  tokenizer-data              download tokenizer definitions and texts and print their folder
  help                        print this text";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  caused by: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent folder")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["run"] => tour::run(root)?,
        ["test", "--op", name] => test::one_operation(root, name)?,
        ["test", steps @ ..] => test::run(root, steps)?,
        ["codegen"] => codegen::run(root, codegen::Mode::Write)?,
        ["codegen", "--check"] => codegen::run(root, codegen::Mode::Check)?,
        ["codegen", "--diff"] => codegen::run(root, codegen::Mode::Diff)?,
        ["chaos", flags @ ..] => {
            command::cargo(root, &[&["run", "--package", "lz-chaos", "--"], flags].concat())?;
        }
        ["candle"] => command::cargo(root, &["test", "--manifest-path", "examples/candle/Cargo.toml"])?,
        ["miri", filters @ ..] => miri::run(root, filters)?,
        ["mutants", flags @ ..] => mutants::run(root, flags)?,
        ["sanitize", flags @ ..] => sanitize::run(root, flags)?,
        ["aarch64", flags @ ..] => aarch64::run(root, flags)?,
        ["fuzz", rest @ ..] => fuzz::run(root, rest)?,
        ["fmt"] => format::run(root, &[])?,
        ["new-op", name] => print!("{}", new_op::run(root, name)?),
        ["import-definition", rest @ ..] => definition::run_import(root, rest)?,
        ["export-definition", rest @ ..] => definition::run_export(root, rest)?,
        ["bench", "select", flags @ ..] => bench(root, "bench-select", flags)?,
        ["bench", "instructions", flags @ ..] => instructions::run(root, flags)?,
        ["bench", "scenarios", flags @ ..] => bench(root, "lz-scenarios", flags)?,
        ["bench", "python", flags @ ..] => python::bench(root, flags)?,
        ["bench", "graph", flags @ ..] => python::bench_graph(root, flags)?,
        ["bench", "cpu", flags @ ..] => bench_with_peers(root, "bench-cpu", flags)?,
        ["bench", "tuned", flags @ ..] => python::bench_tuned(root, flags)?,
        ["bench", "cpp", flags @ ..] => bench(root, "bench-cpp", flags)?,
        ["bench", "ipc", flags @ ..] => bench(root, "bench-ipc", flags)?,
        ["bench", "tokenize", flags @ ..] => {
            tokenizers::ensure_tokenizer_data(root)?;
            bench_with_peers(root, "bench-tokenize", flags)?;
        }
        ["bench", "tokenizers", flags @ ..] => python::bench_tokenizers(root, flags)?,
        ["tokenizer-data"] => println!("{}", tokenizers::ensure_tokenizer_data(root)?.display()),
        ["notices"] => notices::run(root, false)?,
        ["notices", "--check"] => notices::run(root, true)?,
        ["python-versions"] => python_packages::update_versions(root)?,
        ["docs"] => docs::run(root)?,
        ["dist"] => dist::run(root)?,
        ["gpu-bundle", flags @ ..] => gpu_bundle::run(root, flags)?,
        ["onnx-data"] => println!("{}", oracles::ONNX_NODES.ensure(root)?.join("node").display()),
        [] | ["help" | "--help" | "-h"] => println!("{HELP}"),
        _ => bail!("unknown command: cargo xtask {}\n\n{HELP}", arguments.join(" ")),
    }
    Ok(())
}

/// Runs a benchmark in the release profile.
fn bench(root: &Path, package: &str, flags: &[&str]) -> Result<()> {
    let arguments = ["run", "--release", "--package", package, "--"];
    command::cargo(root, &[&arguments, flags].concat())
}

/// As [`bench`], with the libraries that it compares with; no other build compiles them.
fn bench_with_peers(root: &Path, package: &str, flags: &[&str]) -> Result<()> {
    let arguments = ["run", "--release", "--package", package, "--features", "peers", "--"];
    command::cargo(root, &[&arguments, flags].concat())
}
