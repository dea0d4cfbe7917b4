//! `cargo xtask aarch64`: builds the workspace for aarch64 Linux and runs its tests under emulation, in the root of [`debian`].

mod debian;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::command;
use debian::Debian;

/// One run of cargo in the root.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [&'static str],
}

/// Libraries, programs, examples and tests of all crates, with the bindings: the static C++ library and the Python extension.
const BUILD: Step = Step {
    name: "build",
    arguments: &["build", "--workspace", "--lib", "--bins", "--examples", "--tests"],
    environment: &[],
};

/// The vector arithmetic of NEON, then every CPU kernel compared with its reference for a few calls.
///
/// The packages are those of the kernel tests in [`TESTS`], so that third-party crates have the features of the whole workspace and cargo
/// uses what [`BUILD`] compiled. Without `lz-serve`, `mio` has fewer features, and cargo would compile `lz-engine` and all crates that
/// depend on it a second time.
const NEON: &[Step] = &[
    Step {
        name: "vector arithmetic",
        arguments: &[
            "test",
            "--package=lz-cpu",
            "--package=lz-conformance",
            "--package=lz-serve",
            "--test=suite",
            "simd",
        ],
        environment: &[],
    },
    Step {
        name: "kernels and references",
        arguments: &[
            "test",
            "--package=lz-cpu",
            "--package=lz-conformance",
            "--package=lz-serve",
            "--lib",
            "tests::values",
        ],
        environment: &["LZ_CASES_VALUES=64"],
    },
];

/// The tests of tensors and devices; those of CPU kernels, with the conformance tests that compare every kernel with its reference, and of
/// the server; then the unit tests and suites of all other crates. Emulation is slow, so the conformance tests draw fewer calls than
/// natively.
const TESTS: &[Step] = &[
    // Without a choice of targets, so that cargo also builds the example library that tests of `lz-device` load. The skipped test reads a
    // flag of `/proc/self/smaps`, which qemu writes itself and without that flag.
    Step {
        name: "core",
        arguments: &[
            "test",
            "--no-fail-fast",
            "--package=lz-core",
            "--package=lz-device",
            "--",
            "--skip=tensor::pages::tests::huge_pages_are_requested",
        ],
        environment: &[],
    },
    Step {
        name: "kernels and server",
        arguments: &[
            "test",
            "--no-fail-fast",
            "--package=lz-cpu",
            "--package=lz-conformance",
            "--package=lz-serve",
        ],
        environment: &["LZ_CASES_METADATA=200", "LZ_CASES_VALUES=64"],
    },
    Step {
        name: "other crates",
        arguments: &[
            "test",
            "--no-fail-fast",
            "--workspace",
            "--exclude=lz-core",
            "--exclude=lz-device",
            "--exclude=lz-cpu",
            "--exclude=lz-conformance",
            "--exclude=lz-serve",
            "--lib",
            "--test=suite",
        ],
        environment: &["PROPTEST_CASES=16"],
    },
];

/// Variables of the caller that are set in the root too. They take precedence over those of a step.
const PASSED_ON: &[&str] = &[
    "CARGO_BUILD_JOBS",
    "LZ_CASE",
    "LZ_CASES_METADATA",
    "LZ_CASES_PROMISES",
    "LZ_CASES_VALUES",
    "PROPTEST_CASES",
    "RUST_TEST_THREADS",
];

/// What the command does.
#[derive(Debug, PartialEq, Eq)]
struct Options<'a> {
    /// Where packages come from; without it, what apt of this machine uses.
    mirror: Option<&'a str>,
    work: Work<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Work<'a> {
    All,
    Build,
    Test,
    Neon,
    Cargo(&'a [&'a str]),
}

fn parse<'a>(flags: &'a [&'a str]) -> Result<Options<'a>> {
    let (mirror, rest) = match flags {
        ["--mirror", mirror, rest @ ..] => (Some(*mirror), rest),
        rest => (None, rest),
    };
    let work = match rest {
        [] => Work::All,
        ["build"] => Work::Build,
        ["test"] => Work::Test,
        ["neon"] => Work::Neon,
        ["cargo", arguments @ ..] if !arguments.is_empty() => Work::Cargo(arguments),
        _ => bail!(
            "expected [--mirror URL] [build | test | neon | cargo ARGUMENT...], found `{}`",
            flags.join(" ")
        ),
    };
    Ok(Options { mirror, work })
}

/// Makes the root if there is none, then builds and tests.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let options = parse(flags)?;
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")),
        "this command emulates aarch64 on x86-64 Linux; on aarch64, `cargo xtask test` runs the tests"
    );
    let debian = Debian::ensure(root, options.mirror)?;
    // Cargo in the root has no network.
    command::cargo(root, &["fetch", "--locked"])?;
    let steps = match options.work {
        Work::All => std::iter::once(&BUILD).chain(TESTS).collect(),
        Work::Build => vec![&BUILD],
        Work::Test => TESTS.iter().collect(),
        Work::Neon => NEON.iter().collect(),
        Work::Cargo(arguments) => return debian.cargo(arguments, &passed_on()),
    };
    run_all(steps, |step| run_step(&debian, step))
}

/// Runs every step, also after one that fails: emulation takes hours, and a failure of one crate says nothing about the others.
fn run_all(steps: Vec<&Step>, mut run: impl FnMut(&Step) -> Result<()>) -> Result<()> {
    let mut failed = Vec::new();
    for step in steps {
        let start = Instant::now();
        let outcome = run(step);
        let seconds = start.elapsed().as_secs();
        match outcome {
            Ok(()) => println!("aarch64: {} passed in {seconds} s", step.name),
            Err(error) => {
                println!("aarch64: {} failed after {seconds} s: {error:#}", step.name);
                failed.push(step.name);
            }
        }
    }
    ensure!(failed.is_empty(), "aarch64: failed steps: {}", failed.join(", "));
    Ok(())
}

fn run_step(debian: &Debian, step: &Step) -> Result<()> {
    println!("\n== aarch64: {}", step.name);
    let mut environment: Vec<String> = step.environment.iter().map(|&setting| setting.to_owned()).collect();
    // `env` uses the last value of a variable.
    environment.extend(passed_on());
    debian.cargo(step.arguments, &environment)
}

/// The variables of [`PASSED_ON`] that are set, as `NAME=VALUE`.
fn passed_on() -> Vec<String> {
    let value = |name: &&str| Some(format!("{name}={}", std::env::var(name).ok()?));
    PASSED_ON.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_after_a_failed_step_run() {
        let mut ran = Vec::new();
        let result = run_all(TESTS.iter().collect(), |step| {
            ran.push(step.name);
            ensure!(!["core", "other crates"].contains(&step.name), "wrong");
            Ok(())
        });
        assert_eq!(ran, ["core", "kernels and server", "other crates"]);
        assert_eq!(result.unwrap_err().to_string(), "aarch64: failed steps: core, other crates");
    }

    #[test]
    fn flags_are_parsed() {
        assert_eq!(parse(&[]).unwrap(), Options { mirror: None, work: Work::All });
        assert_eq!(parse(&["build"]).unwrap().work, Work::Build);
        assert_eq!(parse(&["neon"]).unwrap().work, Work::Neon);
        let options = parse(&["--mirror", "http://example.org/debian", "test"]).unwrap();
        assert_eq!(options, Options { mirror: Some("http://example.org/debian"), work: Work::Test });
        assert_eq!(parse(&["cargo", "check"]).unwrap().work, Work::Cargo(&["check"]));
        for wrong in [&["cargo"][..], &["--mirror"], &["tests"], &["build", "test"]] {
            assert!(parse(wrong).unwrap_err().to_string().contains("[build | test"), "{wrong:?}");
        }
    }
}
