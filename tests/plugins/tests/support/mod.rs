//! Compiles plugins beside the tests' other products.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder for plugins that only we can write.
pub fn folder() -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder.canonicalize().unwrap()
}

/// Compiles a plugin from a source under `native/`; `fault` names what is broken in it, or nothing. A plugin that is there
/// already is not written again: another test may have it loaded.
pub fn compile(source: &str, fault: &str) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut made = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (root, stem) = (root(), source.replace('.', "_"));
    let output = folder().join(format!("lib{stem}{fault}-{}.so", std::process::id()));
    if made.contains(&output) {
        return output;
    }
    let (compiler, standard) =
        if source.ends_with(".c") { ("gcc", "-std=gnu11") } else { ("g++", "-std=c++20") };
    let mut command = Command::new(compiler);
    command.args([standard, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra"]);
    if !fault.is_empty() {
        command.arg(format!("-DFAULT_{fault}"));
    }
    command.arg("-I").arg(root.join("bindings/cpp/include"));
    command.arg("-I").arg(root.join("runtime/plugin/include"));
    command.arg(root.join("tests/plugins/native").join(source)).arg("-o").arg(&output).arg("-lm");
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    made.push(output.clone());
    output
}

/// The worker program.
#[allow(dead_code, reason = "not every test that uses this file starts one")]
pub fn worker_program() -> PathBuf {
    env!("CARGO_BIN_EXE_lz-plugin-worker").into()
}
