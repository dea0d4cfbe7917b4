//! The mutants that cargo-mutants lists.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What a mutant changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Genre {
    /// The body of a function becomes a constant result.
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// A line and a column in characters, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// One change of one place.
#[derive(Debug, Clone)]
pub struct Mutant {
    pub name: String,
    pub package: String,
    /// Relative to the workspace.
    pub file: String,
    pub genre: Genre,
    /// What is replaced.
    pub start: Position,
    pub end: Position,
    pub replacement: String,
    /// Whether the function's return type names no type (`impl Trait`).
    pub returns_impl: bool,
}

/// All mutants of the files that `.cargo/mutants.toml` names.
pub fn mutants(root: &Path, flags: &[&str]) -> Result<Vec<Mutant>> {
    let output = Command::new("cargo")
        .args(["mutants", "--list", "--json"])
        .args(flags)
        .current_dir(root)
        .output()
        .context("could not start cargo mutants")?;
    ensure!(output.status.success(), "cargo mutants --list: {}", String::from_utf8_lossy(&output.stderr));
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).context("the list of cargo mutants")?;
    listed.iter().map(|one| mutant(one).with_context(|| format!("the mutant {}", one["name"]))).collect()
}

fn mutant(listed: &Value) -> Result<Mutant> {
    let text = |name: &str| listed[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
    let position = |name: &str| {
        let field =
            |field: &str| listed["span"][name][field].as_u64().with_context(|| format!("no {name} {field}"));
        anyhow::Ok(Position { line: field("line")? as usize, column: field("column")? as usize })
    };
    Ok(Mutant {
        name: text("name")?,
        package: text("package")?,
        file: text("file")?,
        genre: match &*text("genre")? {
            "FnValue" => Genre::FnValue,
            "BinaryOperator" => Genre::BinaryOperator,
            "UnaryOperator" => Genre::UnaryOperator,
            "MatchArm" => Genre::MatchArm,
            "MatchArmGuard" => Genre::MatchArmGuard,
            "StructField" => Genre::StructField,
            other => anyhow::bail!("{other} is an unknown genre"),
        },
        start: position("start")?,
        end: position("end")?,
        replacement: text("replacement")?,
        returns_impl: listed["function"]["return_type"].as_str().is_some_and(|of| of.contains("impl ")),
    })
}
