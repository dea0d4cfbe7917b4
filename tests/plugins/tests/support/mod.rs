//! Compiles test plugins into the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder for plugins that only the current user can write.
pub fn folder() -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder.canonicalize().unwrap()
}

/// Compiles a plugin from a source in `native/`; `fault` selects its fault, or none. An existing plugin is not overwritten, because
/// another test may have loaded it.
pub fn compile(source: &str, fault: &str) -> PathBuf {
    static COMPILED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let (root, stem) = (root(), source.replace('.', "_"));
    let output = folder().join(format!("lib{stem}{fault}-{}.so", std::process::id()));
    if compiled.contains(&output) {
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
    let compiler_output = command.output().unwrap();
    assert!(compiler_output.status.success(), "{}", String::from_utf8_lossy(&compiler_output.stderr));
    compiled.push(output.clone());
    output
}

/// The worker program.
#[allow(dead_code, reason = "not every test that uses this file starts one")]
pub fn worker_program() -> PathBuf {
    env!("CARGO_BIN_EXE_lz-plugin-worker").into()
}
