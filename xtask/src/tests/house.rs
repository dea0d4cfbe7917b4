//! The rules of ARCHITECTURE.md that a machine can hold: who may use whom, and what a crate must not know.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::codegen;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The floors of the house, from the ground up: a crate uses only what stands on a lower one.
fn floor(folder: &str) -> Option<usize> {
    let floors = [
        "lz-schema",
        "lz-codegen",
        "lz-macros",
        "lz-core",
        "lz-ops",
        "backends",
        "bindings",
        "tests",
        "xtask",
    ];
    floors.iter().position(|floor| folder.split('/').next() == Some(floor))
}

/// Every package of the workspace: its name, its folder, and the packages of the workspace that it is built from.
fn packages() -> BTreeMap<String, (String, Vec<String>)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut found = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folder = manifest.parent().unwrap().strip_prefix(root()).unwrap();
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let built_from = dependencies
            .filter(|dependency| dependency["path"].is_string() && dependency["kind"] != "dev")
            .map(|dependency| dependency["name"].as_str().unwrap().to_owned());
        found.insert(
            package["name"].as_str().unwrap().to_owned(),
            (folder.to_str().unwrap().replace('\\', "/"), built_from.collect()),
        );
    }
    found
}

#[test]
fn a_crate_uses_only_what_stands_below_it() {
    let packages = packages();
    assert!(packages.len() >= 6, "{packages:?}");
    for (name, (folder, dependencies)) in &packages {
        let own = floor(folder).unwrap_or_else(|| panic!("{folder} has no place in the house"));
        for dependency in dependencies {
            let (other_folder, _) = &packages[dependency];
            let other = floor(other_folder).unwrap();
            // Test suites may share helpers with each other; a worker process is there to run plugins; there is one pool of
            // threads.
            let beside = [("lz-worker", "lz-plugin"), ("lz-cpu", "lz-pool"), ("lz-tokenize", "lz-pool")];
            let allowed = other < own
                || (other == own && folder.starts_with("tests/"))
                || beside.contains(&(name.as_str(), dependency.as_str()));
            assert!(allowed, "{name} ({folder}) must not use {dependency} ({other_folder})");
        }
    }
}

/// Code without comments and without what follows `#[cfg(test)]`, line by line with its place.
fn code(folder: &str) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for path in codegen::walk(&root().join(folder)).unwrap() {
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let relative = path.strip_prefix(root()).unwrap().display().to_string();
        for (number, line) in text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]") {
            let line = line.split("//").next().unwrap_or_default();
            lines.push((format!("{relative}:{}", number + 1), line.to_owned()));
        }
    }
    assert!(!lines.is_empty(), "{folder} is gone");
    lines
}

#[test]
fn the_generator_does_no_input_or_output() {
    let banned = ["std::fs", "std::io", "std::env", "std::net", "std::process", "println!", "print!", "dbg!"];
    for (place, line) in code("lz-codegen/src") {
        for word in banned {
            assert!(!line.contains(word), "{place} uses {word}: {line}");
        }
    }
}

#[test]
fn schemas_know_no_tensors() {
    for (place, line) in code("lz-schema/src") {
        assert!(!line.contains("lz_core") && !line.contains("TensorView"), "{place}: {line}");
    }
}

#[test]
fn the_engine_knows_no_particular_operation() {
    let catalogue = codegen::load(root()).unwrap();
    // Names of one word (`quantize`) are words of the field as well.
    let names: Vec<&str> = catalogue
        .set
        .operations
        .iter()
        .map(|operation| operation.name.as_str())
        .filter(|name| name.contains('.'))
        .collect();
    assert!(names.len() > 30);
    let spellings: Vec<String> = names
        .iter()
        .flat_map(|name| [(*name).to_owned(), name.replace('.', "_"), lz_codegen::names::camel(name)])
        .collect();
    for (place, line) in code("lz-core/src") {
        for spelling in &spellings {
            assert!(!line.contains(spelling.as_str()), "{place} names {spelling}: {line}");
        }
    }
}
