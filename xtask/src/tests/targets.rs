//! Cargo targets without a test build contain no tests, which would never run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files;

/// A library or program of the workspace with `test = false` or `doctest = false`.
struct Target {
    name: String,
    folder: PathBuf,
    test: bool,
    doctest: bool,
}

fn targets() -> Vec<Target> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |path: &Path| fs::read_to_string(path).unwrap().parse::<toml::Table>().unwrap();
    let workspace = read(&root.join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let mut found = Vec::new();
    for member in members {
        let folder = root.join(member.as_str().unwrap());
        let manifest = read(&folder.join("Cargo.toml"));
        let programs = manifest.get("bin").and_then(|programs| programs.as_array()).into_iter().flatten();
        for target in manifest.get("lib").into_iter().chain(programs) {
            let enabled = |key| target.get(key).is_none_or(|value| value.as_bool() == Some(true));
            found.push(Target {
                name: member.as_str().unwrap().to_owned(),
                folder: folder.join("src"),
                test: enabled("test"),
                doctest: enabled("doctest"),
            });
        }
    }
    found
}

/// Whether a documentation comment contains a code block that rustdoc would run.
fn has_example(source: &str) -> bool {
    let comments = source.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    comments.map(str::trim).any(|line| line == "```" || line.starts_with("```rust"))
}

#[test]
fn targets_without_a_test_build_contain_no_tests() {
    let targets = targets();
    assert!(targets.iter().any(|target| !target.test) && targets.iter().any(|target| !target.doctest));
    for target in &targets {
        for path in files::walk(&target.folder).unwrap() {
            let source = fs::read_to_string(&path).unwrap_or_default();
            let named = || format!("{}: {}", target.name, path.display());
            // Split, so that this file does not match.
            let is_test =
                source.contains(concat!("#[", "test]")) || source.contains(concat!("cfg", "(test)"));
            assert!(target.test || !is_test, "{} has tests, but `test = false`", named());
            assert!(
                target.doctest || !has_example(&source),
                "{} has examples, but `doctest = false`",
                named()
            );
        }
    }
}
