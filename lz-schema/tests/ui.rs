//! Every diagnostic has a fixture with its exact text, and valid schemas are accepted.
//!
//! `tests/ui/README.md` explains how to add a fixture.

use std::fs;
use std::path::{Path, PathBuf};

use lz_schema::diagnostics::Code;
use lz_schema::{Reasons, SchemaSet, load_one};

const REASONS: &str = "version: 1
reasons:
  ZERO_SIZE: { category: validation, sentence: A dimension is zero., fields: [argument, axis] }
  GQA_HEADS_MISMATCH: { category: shape, sentence: Heads do not divide., fields: [required, found] }
";

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui").join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder exists")
        .map(|entry| entry.expect("the entry is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    paths
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).expect("fixture names are ASCII")
}

/// A line `#@ file PATH` starts a file. Without such lines, the fixture is a single file.
fn files(path: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).expect("fixtures are UTF-8");
    if !text.starts_with("#@ file ") {
        return vec![(format!("{}.yaml", stem(path)), text)];
    }
    let parts = text.split("#@ file ").skip(1);
    parts
        .map(|part| part.split_once('\n').expect("a path and a text"))
        .map(|(p, t)| (p.into(), t.into()))
        .collect()
}

fn reasons() -> Reasons {
    Reasons::load("reasons.yaml", REASONS).unwrap_or_else(|report| panic!("{report}"))
}

fn rendered(path: &Path) -> Result<(), String> {
    let files = files(path);
    let report = match files.as_slice() {
        [(name, text)] if name.ends_with("/reasons.yaml") => Reasons::load(name, text).err(),
        _ => SchemaSet::load(files, &reasons()).err(),
    };
    report.map_or(Ok(()), |report| Err(report.render()))
}

#[test]
fn invalid_schemas_produce_the_expected_diagnostics() {
    let bless = std::env::var_os("LZ_BLESS").is_some();
    let mut wrong = Vec::new();
    for path in fixtures("fail") {
        let name = stem(&path).to_owned();
        let Err(text) = rendered(&path) else {
            wrong.push(format!("{name}: nothing was reported"));
            continue;
        };
        let code = name.split('_').next().unwrap_or_default();
        if !text.contains(&format!("error[{code}]")) {
            wrong.push(format!("{name}: {code} was not reported, but\n{text}"));
        }
        let expected = path.with_extension("stderr");
        if bless {
            fs::write(&expected, &text).expect("the folder is writable");
        } else if fs::read_to_string(&expected).unwrap_or_default().replace("\r\n", "\n") != text {
            wrong
                .push(format!("{name}: the diagnostics changed; run with LZ_BLESS=1 to accept them\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn codes_and_fixtures_correspond() {
    let names: Vec<String> = fixtures("fail").iter().map(|path| stem(path).to_owned()).collect();
    // The codes of policies and contracts are tested with the engine.
    for code in Code::ALL.iter().filter(|code| **code < Code::PolicyVersion) {
        assert!(
            names.iter().any(|name| name.starts_with(code.id())),
            "{code} has no fixture in tests/ui/fail"
        );
    }
    for name in &names {
        assert!(
            Code::ALL.iter().any(|code| name.starts_with(code.id())),
            "{name} does not begin with a code"
        );
    }
}

#[test]
fn valid_schemas_are_accepted() {
    for path in fixtures("pass") {
        if let Err(text) = rendered(&path) {
            panic!("{}\n{text}", path.display());
        }
    }
}

#[test]
fn single_operation_may_have_any_path() {
    let path = fixtures("pass").into_iter().find(|path| stem(path) == "minimal").expect("there is a fixture");
    let text = fs::read_to_string(&path).expect("the fixture is readable");
    let operation =
        load_one("somewhere/else.yaml", &text, &reasons()).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(operation.version, 1);
    let report =
        load_one("somewhere/else.yaml", "operation: x", &reasons()).expect_err("required keys are missing");
    assert!(report.render().ends_with("errors in somewhere/else.yaml\n"), "{report}");
}
