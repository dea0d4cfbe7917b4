//! Counting instructions with gungraun, and holding static mode to the direct call by what it counted.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;

/// As in Cargo.toml: the runner is a program of its own, and must be of the library's version.
const GUNGRAUN: &str = "=0.20.0";

/// How many calls each case makes, as in `bench_select::counted::STATIC_CALLS`.
const CALLS: u64 = 1000;

/// Counts, and fails when static mode takes another number of instructions than calling the kernel by hand.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let tools = root.join("target/tools");
    let runner = tools.join("bin/gungraun-runner");
    let folder = tools.to_string_lossy();
    let install =
        ["install", "--quiet", "--locked", "--root", &*folder, "--version", GUNGRAUN, "gungraun-runner"];
    command::run(root, "cargo", &install).context("installing gungraun-runner")?;
    let results = root.join("target/gungraun/bench-select");
    // Counts of an earlier run would stand for this one's.
    for summary in summaries(&results) {
        fs::remove_file(summary)?;
    }
    let count = [
        "bench",
        "--quiet",
        "--package",
        "bench-select",
        "--bench",
        "instructions",
        "--",
        "--save-summary=json",
    ];
    command::run_with(root, "cargo", &[&count, flags].concat(), &[("GUNGRAUN_RUNNER", &runner)])?;
    let mut counted = Vec::new();
    for path in summaries(&results) {
        let text = fs::read_to_string(&path)?;
        let summary: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        if let (Some(name), Some(count)) =
            (summary["function_name"].as_str(), instructions(&summary["profiles"]))
        {
            counted.push((name.to_owned(), count));
        }
    }
    hold(&counted)
}

/// Static mode against the direct call.
fn hold(counted: &[(String, u64)]) -> Result<()> {
    let of = |name: &str| {
        let found = counted.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
        found.with_context(|| format!("gungraun has not counted `{name}`"))
    };
    let (direct, static_mode) = (of("direct_call")?, of("static_mode")?);
    // What is counted includes a place that each case allocates once; an instruction more in a call would be a thousand more.
    if direct.abs_diff(static_mode) >= CALLS {
        bail!("{CALLS} calls in static mode take {static_mode} instructions, by hand they take {direct}");
    }
    println!(
        "static mode: {} instructions a call, as many as calling the kernel by hand",
        static_mode / CALLS
    );
    Ok(())
}

/// Every summary below a folder.
fn summaries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .flat_map(|path| if path.is_dir() { summaries(&path) } else { vec![path] })
        .filter(|path| path.file_name().is_some_and(|name| name == "summary.json"))
        .collect()
}

/// The instructions of this run in the data of a benchmark: the first or the only one of what is called `Ir`.
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
        // `values` is what was counted, this time and before; beside it stand differences, which are not.
        Value::Object(fields) => fields.get("new").or_else(|| fields.get("values")).and_then(first_number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_count_is_read_and_held() {
        let summary = serde_json::json!([{ "tool": "Callgrind", "summaries": { "total": { "summary": { "Callgrind": {
            "Ir": { "diffs": { "diff_pct": 1.0 }, "values": { "old": 500, "new": 497 } },
        } } } } }]);
        assert_eq!(instructions(&summary), Some(497));
        let counted = |direct, static_mode| {
            hold(&[("direct_call".to_owned(), direct), ("static_mode".to_owned(), static_mode)])
        };
        assert!(counted(497_013, 497_099).is_ok());
        assert!(counted(497_013, 498_013).unwrap_err().to_string().contains("498013"));
        assert!(hold(&[]).unwrap_err().to_string().contains("direct_call"));
    }
}
