//! The layers of ARCHITECTURE.md: which crate may depend on which, what a crate must not contain, and that the modules of a crate
//! form layers too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::codegen;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The layers, in the order of the table in ARCHITECTURE.md: a crate may depend only on crates above it. Folders in one row may
/// depend on each other.
const LAYERS: &[&[&str]] = &[
    &["shared-features"],
    &["lz-schema"],
    &["lz-codegen"],
    &["lz-interchange"],
    &["lz-macros"],
    &["lz-core"],
    &["lz-files"],
    &["lz-ops"],
    &["lz-device"],
    &["lz-perfdb"],
    &["lz-engine"],
    &["lz-primitives"],
    &["runtime/pool"],
    &["lz-graph"],
    &["runtime/plugin"],
    &["runtime/worker"],
    &["runtime/serve"],
    &["runtime/onnxruntime"],
    &["backends"],
    &["layerzero"],
    &["bindings"],
    &["tests", "benches"],
    &["xtask"],
];

/// The row of a crate's folder.
fn layer(folder: &str) -> Option<usize> {
    let is_in =
        |row: &str| folder == row || folder.strip_prefix(row).is_some_and(|rest| rest.starts_with('/'));
    LAYERS.iter().position(|rows| rows.iter().any(|row| is_in(row)))
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
fn a_crate_depends_only_on_crates_above_it() {
    let packages = packages();
    assert!(packages.len() >= 6, "{packages:?}");
    for (name, (folder, dependencies)) in &packages {
        let own = layer(folder).unwrap_or_else(|| panic!("{folder} is in no layer"));
        for dependency in dependencies {
            let (other_folder, _) = &packages[dependency];
            let other = layer(other_folder).unwrap_or_else(|| panic!("{other_folder} is in no layer"));
            let allowed = other < own || (other == own && LAYERS[own].len() > 1);
            assert!(allowed, "{name} ({folder}) must not depend on {dependency} ({other_folder})");
        }
    }
}

#[test]
fn the_table_of_the_architecture_lists_the_layers() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).map(|line| {
        let first = line.split('|').nth(1).unwrap_or_default();
        let names = first.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('/'));
        names.collect::<Vec<&str>>()
    });
    let rows: Vec<Vec<&str>> = rows.filter(|row| row.as_slice() != ["schemas"]).collect();
    assert_eq!(rows, LAYERS.iter().map(|row| row.to_vec()).collect::<Vec<_>>());
}

#[test]
fn modules_of_a_crate_do_not_import_each_other_in_cycles() {
    for (folder, _) in packages().into_values() {
        let source = format!("{folder}/src");
        if root().join(&source).is_dir() {
            let cycles = cycles(&imports(&source));
            assert!(cycles.is_empty(), "{folder}: modules import each other: {cycles:?}");
        }
    }
}

/// The top-level modules of a crate, each with the top-level modules that its files name.
fn imports(source: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut texts: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
    let mut crate_root = String::new();
    for path in codegen::walk(&root().join(source)).unwrap() {
        let relative = path.strip_prefix(root().join(source)).unwrap().display().to_string();
        let is_test = relative.ends_with("tests.rs") || relative.contains("/tests/");
        let Some(module) = relative.strip_suffix(".rs").filter(|_| !is_test) else { continue };
        let text: Vec<String> = code_of(&path).into_iter().map(|(_, line)| line).collect();
        let text = text.join("\n");
        let module = module.strip_suffix("/mod").unwrap_or(module);
        match module {
            "lib" | "main" => crate_root.push_str(&text),
            _ if module.starts_with("bin/") => {}
            _ => {
                let top = module.split('/').next().unwrap_or(module).to_owned();
                texts.entry(top).or_default().push((module.split('/').count(), text));
            }
        }
    }
    let modules: BTreeSet<String> = texts.keys().cloned().collect();
    let reexported = reexported(&crate_root, &modules);
    let mut all = BTreeMap::new();
    for (module, files) in texts {
        let mut named = BTreeSet::new();
        for (depth, text) in files {
            let heads =
                named_after(&text, "crate::").into_iter().chain(named_after(&text, &"super::".repeat(depth)));
            for name in heads {
                let other = if modules.contains(&name) { Some(&name) } else { reexported.get(&name) };
                named.extend(other.filter(|other| **other != module).cloned());
            }
        }
        all.insert(module, named);
    }
    all
}

/// What the root of a crate re-exports or imports, by name, with the module that it is from.
fn reexported(crate_root: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for statement in crate_root.split(';') {
        let Some((_, tree)) = statement.split_once("use ") else { continue };
        let mut words =
            tree.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
        let Some(module) = words.next().filter(|word| modules.contains(*word)) else { continue };
        found.extend(words.map(|word| (word.to_owned(), module.to_owned())));
    }
    found
}

/// The first names of all paths, or groups of paths, after a head such as `crate::`.
fn named_after(text: &str, head: &str) -> Vec<String> {
    let mut names = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in text.match_indices(head) {
        if text[..at].ends_with(|c: char| is_word(c) || c == ':' || c == '$') {
            continue;
        }
        let rest = &text[at + head.len()..];
        let first = |path: &str| path.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
        let Some(group) = rest.strip_prefix('{') else {
            names.push(first(rest));
            continue;
        };
        let (mut depth, mut start) = (0, 0);
        for (end, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    names.push(first(&group[start..end]));
                    start = end + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    names
}

/// Sets of modules that reach each other.
fn cycles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let reached_from = |start: &String| {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&String> = imports[start].iter().collect();
        while let Some(module) = open.pop() {
            if reached.insert(module.clone()) {
                open.extend(&imports[module]);
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|module| (module, reached_from(module))).collect();
    let mut found = BTreeSet::new();
    for (module, others) in &reached {
        let cycle: BTreeSet<String> =
            others.iter().filter(|other| reached[other].contains(*module)).cloned().collect();
        if cycle.len() > 1 {
            found.insert(cycle);
        }
    }
    found
}

/// Code of a file without comments and without what follows `#[cfg(test)]`, line by line with its number.
fn code_of(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    lines.map(|(number, line)| (number + 1, line.split("//").next().unwrap_or_default().to_owned())).collect()
}

/// The same for all files of a folder, with their names.
fn code(folder: &str) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for path in codegen::walk(&root().join(folder)).unwrap() {
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let relative = path.strip_prefix(root()).unwrap().display().to_string();
        lines.extend(code_of(&path).into_iter().map(|(number, line)| (format!("{relative}:{number}"), line)));
    }
    assert!(!lines.is_empty(), "{folder} is gone");
    lines
}

#[test]
fn the_generator_does_no_input_or_output() {
    let banned = ["std::fs", "std::io", "std::env", "std::net", "std::process", "println!", "print!", "dbg!"];
    for (location, line) in ["lz-codegen/src", "lz-interchange/src"].into_iter().flat_map(code) {
        for word in banned {
            assert!(!line.contains(word), "{location} uses {word}: {line}");
        }
    }
}

#[test]
fn schemas_know_no_tensors() {
    for (location, line) in code("lz-schema/src") {
        assert!(!line.contains("lz_core") && !line.contains("TensorView"), "{location}: {line}");
    }
}

#[test]
fn the_engine_knows_no_particular_operation() {
    let catalog = codegen::load(root()).unwrap();
    // Names of one word (`quantize`) are words of the field as well.
    let names: Vec<&str> = catalog
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
    let folders = ["lz-core/src", "lz-device/src", "lz-perfdb/src", "lz-engine/src"];
    for (location, line) in folders.into_iter().flat_map(code) {
        for spelling in &spellings {
            assert!(!line.contains(spelling.as_str()), "{location} names {spelling}: {line}");
        }
    }
}

#[test]
fn only_the_performance_database_depends_on_sqlite() {
    for (folder, manifest) in manifests() {
        let normal = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        assert!(!normal.contains("rusqlite") || folder == "lz-perfdb", "{folder} depends on rusqlite");
        let watches = normal.contains("\nnotify") || normal.contains("\nlibloading");
        assert!(!(folder == "lz-core" && watches), "lz-core watches files or opens libraries");
    }
}

#[test]
fn kernel_authors_compile_no_engine() {
    for package in ["lz-ops", "lz-cpu", "lz-tokenize"] {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--offline"])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8(output.stdout).unwrap();
        let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(names.contains("lz-core"), "{package}: {names:?}");
        for banned in ["lz-engine", "lz-perfdb", "rusqlite", "libsqlite3-sys", "notify"] {
            assert!(!names.contains(banned), "{package} compiles {banned}");
        }
        // Our own backends detect processors, and device detection loads driver libraries.
        assert!(package != "lz-ops" || !names.contains("libloading"), "{package} compiles libloading");
    }
}

/// The manifests of all packages, by folder.
fn manifests() -> Vec<(String, String)> {
    let folders = packages().into_values().map(|(folder, _)| folder);
    folders
        .map(|folder| (folder.clone(), fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap()))
        .collect()
}
