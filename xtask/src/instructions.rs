//! `cargo xtask bench instructions`: counts instructions with gungraun and checks that static mode adds none to a direct call.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;

/// Version of the separate runner program. It must equal the version of the library in Cargo.toml.
const GUNGRAUN: &str = "=0.20.0";

/// Calls per benchmark case; equals `bench_select::counted::STATIC_CALLS`.
const CALLS: u64 = 1000;

/// Counts instructions; fails if a call in static mode executes a different number than a direct call of the kernel.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let tools = root.join("target/tools");
    let runner = tools.join("bin/gungraun-runner");
    let folder = tools.to_string_lossy();
    let install = ["install", "--locked", "--root", &*folder, "--version", GUNGRAUN, "gungraun-runner"];
    command::cargo(root, &install).context("installing gungraun-runner")?;
    let results = root.join("target/gungraun/bench-select");
    // Summaries of an earlier run must not be read as results of this one.
    for summary in summaries(&results) {
        fs::remove_file(summary)?;
    }
    let bench =
        ["bench", "--package", "bench-select", "--bench", "instructions", "--", "--save-summary=json"];
    command::build(root, "cargo", &[&bench, flags].concat(), &[("GUNGRAUN_RUNNER", &runner)])?;
    let mut counts = Vec::new();
    for path in summaries(&results) {
        let text = fs::read_to_string(&path)?;
        let summary: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        if let (Some(name), Some(count)) =
            (summary["function_name"].as_str(), instructions(&summary["profiles"]))
        {
            counts.push((name.to_owned(), count));
        }
    }
    check_static_mode(&counts)
}

/// Compares the instruction counts of static mode and of the direct call.
fn check_static_mode(counts: &[(String, u64)]) -> Result<()> {
    let count_of = |name: &str| {
        let entry = counts.iter().find(|(case, _)| case == name);
        entry.map(|(_, count)| *count).with_context(|| format!("gungraun reported no count for `{name}`"))
    };
    let (direct, static_mode) = (count_of("direct_call")?, count_of("static_mode")?);
    // Each case also allocates its output once, so the counts differ slightly. One instruction more per call would add `CALLS`.
    if direct.abs_diff(static_mode) >= CALLS {
        bail!(
            "{CALLS} calls in static mode execute {static_mode} instructions, direct calls execute {direct}"
        );
    }
    println!("static mode: {} instructions per call, the same as a direct call", static_mode / CALLS);
    Ok(())
}

/// Lists all gungraun summaries below a folder.
fn summaries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .flat_map(|path| if path.is_dir() { summaries(&path) } else { vec![path] })
        .filter(|path| path.file_name().is_some_and(|name| name == "summary.json"))
        .collect()
}

/// The instruction count of this run: the first `Ir` metric in the summary of a benchmark.
fn instructions(value: &Value) -> Option<u64> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("Ir").and_then(first_number);
            own.or_else(|| fields.values().find_map(instructions))
        }
        Value::Array(items) => items.iter().find_map(instructions),
        _ => None,
    }
}

fn first_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        // `values` has the counts of this run and of the previous one; its sibling `diffs` has their differences.
        Value::Object(fields) => fields.get("new").or_else(|| fields.get("values")).and_then(first_number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_count_is_read_and_extra_instructions_are_rejected() {
        let summary = serde_json::json!([{ "tool": "Callgrind", "summaries": { "total": { "summary": { "Callgrind": {
            "Ir": { "diffs": { "diff_pct": 1.0 }, "values": { "old": 500, "new": 497 } },
        } } } } }]);
        assert_eq!(instructions(&summary), Some(497));
        let check = |direct, static_mode| {
            check_static_mode(&[("direct_call".to_owned(), direct), ("static_mode".to_owned(), static_mode)])
        };
        assert!(check(497_013, 497_099).is_ok());
        assert!(check(497_013, 498_013).unwrap_err().to_string().contains("498013"));
        assert!(check_static_mode(&[]).unwrap_err().to_string().contains("direct_call"));
    }
}
