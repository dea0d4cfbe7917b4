//! Fixtures of invalid files: each is next to its exact diagnostic. `LZ_BLESS=1` updates the diagnostics.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lz_core::OperationInfo;
use lz_core::dynamic::read_operation_of;

/// The catalog, read from `schemas/ops` as run-time operations.
///
/// # Panics
/// When a schema is wrong.
pub fn operations() -> &'static [&'static OperationInfo] {
    static OPERATIONS: OnceLock<Vec<&'static OperationInfo>> = OnceLock::new();
    OPERATIONS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas/ops");
        let mut paths = Vec::new();
        walk(&root, &mut paths);
        paths.sort();
        // By path, a specialization comes after its general operation.
        paths.iter().fold(Vec::new(), |mut read: Vec<&'static OperationInfo>, path| {
            let text = fs::read_to_string(path).expect("schemas are UTF-8");
            let general = |name: &str| read.iter().copied().find(|operation| operation.name == name);
            let operation = read_operation_of(&path.to_string_lossy(), &text, general);
            read.push(operation.expect("the catalog is checked elsewhere"));
            read
        })
    })
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is checked in") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

/// The operation with this name.
///
/// # Panics
/// When the catalog does not have it.
pub fn operation(name: &str) -> &'static OperationInfo {
    operations().iter().find(|info| info.name == name).expect("the catalog has it")
}

/// The fixtures of a directory, sorted: name and text.
///
/// # Panics
/// When the folder cannot be read.
pub fn fixtures(folder: &str) -> Vec<(PathBuf, String, String)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder is checked in")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "stderr"))
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path.file_name().expect("files have names").to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).expect("fixtures are UTF-8");
            (path, name, text)
        })
        .collect()
}

/// Compares every fixture of a directory with its diagnostic; `refused` returns the diagnostic of an invalid file.
///
/// # Panics
/// When a text differs.
pub fn hold(folder: &str, refused: impl Fn(&str, &str) -> Option<String>) -> usize {
    let bless = std::env::var_os("LZ_BLESS").is_some();
    let mut wrong = Vec::new();
    let all = fixtures(folder);
    for (path, name, text) in &all {
        let Some(report) = refused(name, text) else {
            wrong.push(format!("{name}: nothing was reported"));
            continue;
        };
        let code = name.split('_').next().unwrap_or_default();
        if !report.contains(&format!("error[{code}]")) {
            wrong.push(format!("{name}: {code} was not reported, but\n{report}"));
        }
        let expected = PathBuf::from(format!("{}.stderr", path.display()));
        if bless {
            fs::write(&expected, &report).expect("the folder can be written");
        } else if fs::read_to_string(&expected).unwrap_or_default().replace("\r\n", "\n") != report {
            wrong.push(format!("{name}: the text has changed (LZ_BLESS=1 accepts it)\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    all.len()
}
