//! Error messages of the macros, one file per case. `LZ_BLESS=1` updates them.
//!
//! What the macros accept is tested by the crate `tests/out-of-tree`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library of the macros, as cargo built it for this test: nothing is compiled again.
fn macros(target: &Path) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--package", "lz-macros", "--message-format", "json", "--target-dir"])
        .arg(target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    let artifact = messages
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|message| message["reason"] == "compiler-artifact" && message["target"]["name"] == "lz_macros")
        .unwrap();
    artifact["filenames"][0].as_str().unwrap().into()
}

/// Copies the schemas that the cases name into one folder, because macros read them from the folder of the crate.
fn copy_schemas(folder: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in ["tests/ui/misspelled.yaml", "../out-of-tree/ops/scale_add.yaml"] {
        let from = here.join(path);
        fs::copy(&from, folder.join(from.file_name().unwrap())).unwrap();
    }
}

/// What rustc prints for a case, without spaces at the ends of lines and the summary; `None` if it accepts the case.
fn message(case: &str, macros: &Path, folder: &Path) -> Option<String> {
    let output = Command::new("rustc")
        .args(["--edition=2024", "--emit=metadata", "--color=never", case, "--out-dir"])
        .arg(folder)
        .arg(format!("--extern=lz_macros={}", macros.display()))
        .env("CARGO_MANIFEST_DIR", folder)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let (errors, _) = text.rsplit_once("\nerror: aborting due to ").unwrap_or((&text, ""));
    (!output.status.success()).then(|| errors.lines().map(|line| format!("{}\n", line.trim_end())).collect())
}

#[test]
fn each_error_has_its_message() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    copy_schemas(folder);
    let macros = macros(folder.parent().unwrap());
    let bless = std::env::var_os("LZ_BLESS").is_some();
    let mut cases: Vec<PathBuf> = fs::read_dir("tests/ui/fail")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    let mut wrong = Vec::new();
    for case in cases {
        let name = case.to_str().unwrap();
        let Some(text) = message(name, &macros, folder) else {
            wrong.push(format!("{name} compiles"));
            continue;
        };
        let expected = case.with_extension("stderr");
        if bless {
            fs::write(&expected, &text).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != text {
            wrong.push(format!("{name}: the message changed; run with LZ_BLESS=1 to accept it\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
