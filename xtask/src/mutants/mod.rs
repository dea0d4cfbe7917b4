//! `cargo xtask mutants`: changes the code that selects, caches, judges and checks, one place at a time, and expects a test to fail.
//!
//! `.cargo/mutants.toml` names the files. A mutant that no test notices has survived; the command fails if more than 5 % of the
//! viable mutants survive. `results/reliability.md` lists the known survivors with the reason why each is no fault of the tests.
//! cargo-mutants builds each mutant; `--switched` builds all of them at once.

mod build;
mod list;
mod switched;
mod switches;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::command;
use switched::Outcome;

/// The largest share of viable mutants that may survive, in percent.
const MAX_SURVIVORS: u64 = 5;

/// Runs the mutants. `flags` go to `cargo mutants`: `--shard 3/16` runs a part, `--in-diff FILE` what a diff touches, `--list` none.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    install(root)?;
    match flags {
        ["--switched", flags @ ..] => run_switched(root, flags),
        flags => run_each(root, flags),
    }
}

fn install(root: &Path) -> Result<()> {
    let installed = Command::new("cargo").args(["mutants", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        command::cargo(root, &["install", "--locked", "cargo-mutants"])
            .context("installing cargo-mutants")?;
    }
    Ok(())
}

/// All mutants in one build; those that cannot be switched are listed.
fn run_switched(root: &Path, flags: &[&str]) -> Result<()> {
    let found = switched::run(root, flags)?;
    let count = |outcome| found.switched.iter().filter(|(_, one)| *one == outcome).count() as u64;
    let counts = Counts {
        caught: count(Outcome::Caught),
        missed: count(Outcome::Missed),
        timeout: count(Outcome::NeverEnded),
        unviable: found.unviable as u64,
    };
    let left: Vec<String> = found.left.iter().map(|mutant| mutant.name.clone()).collect();
    if !left.is_empty() {
        let path = root.join("target/mutants/switched/left.txt");
        std::fs::write(&path, left.join("\n"))?;
        println!(
            "{} mutants cannot be switched; run them with `cargo xtask mutants --re NAME`: {}",
            left.len(),
            path.display()
        );
    }
    println!("{}", judge(&counts)?);
    Ok(())
}

/// Builds each mutant.
fn run_each(root: &Path, flags: &[&str]) -> Result<()> {
    let output = root.join("target/mutants");
    std::fs::create_dir_all(&output)?;
    let lists = flags.iter().any(|flag| flag.starts_with("--list"));
    let status = Command::new("cargo")
        .args(["mutants", "--no-shuffle", "--output"])
        .arg(&output)
        .args(flags)
        // A mutant changes one function: small codegen units and their cache save most of its compile time. Fewer cases of the
        // property tests save most of its run time.
        .envs([
            ("CARGO_INCREMENTAL", "1"),
            ("CARGO_PROFILE_DEV_CODEGEN_UNITS", "256"),
            ("PROPTEST_CASES", "16"),
        ])
        .current_dir(root)
        .status()
        .context("could not start cargo mutants")?;
    // 2: survivors, 3: timeouts; both are judged below.
    ensure!(matches!(status.code(), Some(0 | 2 | 3)), "cargo mutants failed ({status})");
    if lists {
        return Ok(());
    }
    let path = output.join("mutants.out/outcomes.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    println!("{}", judge(&Counts::read(&serde_json::from_str(&text)?)?)?);
    println!("the mutants and the output of their tests: {}", output.join("mutants.out").display());
    Ok(())
}

/// The mutants of a run by what happened to them.
struct Counts {
    caught: u64,
    missed: u64,
    timeout: u64,
    unviable: u64,
}

impl Counts {
    fn read(outcomes: &Value) -> Result<Counts> {
        let count = |name: &str| {
            outcomes[name].as_u64().with_context(|| format!("outcomes.json has no count of {name}"))
        };
        Ok(Counts {
            caught: count("caught")?,
            missed: count("missed")?,
            timeout: count("timeout")?,
            unviable: count("unviable")?,
        })
    }
}

/// The counts as text; an error if too many viable mutants survived. A mutant whose tests do not end was noticed.
fn judge(counts: &Counts) -> Result<String> {
    let Counts { caught, missed: survived, timeout, unviable } = counts;
    let viable = survived + caught + timeout;
    let text = format!("{viable} viable mutants, {survived} survived; {unviable} did not compile");
    if survived * 100 > viable * MAX_SURVIVORS {
        bail!("{text}: more than {MAX_SURVIVORS} %; write the tests that notice them");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(caught: u64, missed: u64, timeout: u64) -> Value {
        serde_json::json!({ "caught": caught, "missed": missed, "timeout": timeout, "unviable": 7 })
    }

    #[test]
    fn one_in_twenty_viable_mutants_may_survive() {
        let judge = |outcomes: Value| judge(&Counts::read(&outcomes)?);
        let text = judge(outcomes(90, 5, 5)).unwrap();
        assert_eq!(text, "100 viable mutants, 5 survived; 7 did not compile");
        assert!(judge(outcomes(94, 6, 0)).is_err());
        assert!(judge(outcomes(0, 0, 0)).is_ok(), "a diff may touch no code");
        assert!(judge(serde_json::json!({})).is_err());
    }
}
