//! `cargo xtask sanitize`: the Python extension and the tests of the core crates under AddressSanitizer.
//!
//! The interpreter is not instrumented, so the sanitizer's runtime is loaded before it (`LD_PRELOAD`). The runtime is that of the
//! toolchain, linked into a shared library; that of another compiler may have another version. The build has a target folder of
//! its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{command, python};

/// Checks reads and writes of memory. Memory that is never freed is not reported: the interpreter and the engine keep some until the
/// process ends. The tests raise signals on purpose, which must reach their handlers.
const OPTIONS: &str = "detect_leaks=0:allocator_may_return_null=1:handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0:handle_abort=0:\
                       allow_user_segv_handler=1:detect_stack_use_after_return=0:symbolize=1";

/// Tests that cannot run under the sanitizer, with the reason.
const NOT_SANITIZED: &[&str] = &[];

/// Builds and runs everything, or with `rust` or `python` only that part. Further arguments go to pytest.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let target = host_target()?;
    match flags {
        [] => {
            rust(root, &target)?;
            python(root, &target, &[])
        }
        ["rust"] => rust(root, &target),
        ["python", rest @ ..] => python(root, &target, rest),
        _ => anyhow::bail!("expected nothing, `rust` or `python`, found `{}`", flags.join(" ")),
    }
}

/// Runs cargo with the sanitizer. The target is named, so that build scripts and procedural macros are not instrumented.
fn cargo(root: &Path, target: &str, arguments: &[&str], flags: &str) -> Result<()> {
    let arguments = [arguments, &["--target", target, "--target-dir", "target/asan"]].concat();
    let environment = [
        // The sanitizers are unstable options of the compiler.
        ("RUSTC_BOOTSTRAP", Path::new("1")),
        ("RUSTFLAGS", Path::new(flags)),
        ("ASAN_OPTIONS", Path::new(OPTIONS)),
    ];
    command::build(root, "cargo", &arguments, &environment)
}

/// The unit tests and suites of the crates with `unsafe` code for tensors, arguments and kernels.
fn rust(root: &Path, target: &str) -> Result<()> {
    let packages =
        ["test", "--package", "lz-core", "--package", "lz-engine", "--package", "lz-cpu", "--lib", "--tests"];
    cargo(root, target, &packages, "-Zsanitizer=address").context("Rust tests under AddressSanitizer")
}

/// The Python tests that need no torch.
fn python(root: &Path, target: &str, pytest: &[&str]) -> Result<()> {
    let interpreter = python::ensure_venv(root)?;
    cargo(root, target, &["build", "--package", "lz-python"], "-Zsanitizer=address -Zexternal-clangrt")?;
    let folder = root.join("target/asan");
    let library = folder.join(target).join("debug/lib_native.so");
    let package = package(root, &folder, &library).context("copying the Python package")?;
    let runtime = runtime(&folder, target)?;
    let mut arguments = vec!["-m", "pytest", "-q", "--durations=8", "-p", "no:cacheprovider", "tests/light"];
    for test in NOT_SANITIZED {
        arguments.extend(["--deselect", test]);
    }
    arguments.extend(pytest);
    let environment = [
        ("LD_PRELOAD", runtime.as_path()),
        ("PYTHONPATH", package.as_path()),
        ("ASAN_OPTIONS", Path::new(OPTIONS)),
        ("PYTHONMALLOC", Path::new("malloc")),
    ];
    command::run_with(&root.join("bindings/python"), &interpreter.to_string_lossy(), &arguments, &environment)
        .context("Python tests under AddressSanitizer")
}

/// A copy of the Python package with the sanitized extension; the one of the checkout stays as it is.
fn package(root: &Path, folder: &Path, library: &Path) -> Result<PathBuf> {
    let copy = folder.join("python");
    let sources = root.join("bindings/python/python");
    if copy.exists() {
        std::fs::remove_dir_all(&copy)?;
    }
    for path in crate::files::walk(&sources)? {
        let to = copy.join(path.strip_prefix(&sources)?);
        if path.extension().is_some_and(|extension| extension == "so" || extension == "pyc") {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::copy(&path, &to)?;
    }
    std::fs::copy(library, copy.join("layerzero/_native.abi3.so"))?;
    Ok(copy)
}

/// The sanitizer's runtime as a shared library.
fn runtime(folder: &Path, target: &str) -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output()?;
    ensure!(output.status.success(), "rustc does not know the folder of {target}");
    let libraries = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let archive = std::fs::read_dir(&libraries)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with("_rt.asan.a"))
        .context("the toolchain has no runtime of AddressSanitizer")?;
    // A shared library cannot have the part that initializes the runtime of a program.
    let copy = folder.join("asan.a");
    std::fs::copy(&archive, &copy)?;
    let (archive, library) = (copy.to_string_lossy(), folder.join("libasan_rust.so"));
    command::run(folder, "ar", &["d", &*archive, "asan_preinit.cpp.o"])?;
    let out = library.to_string_lossy();
    let arguments = [
        "-shared",
        "-o",
        &*out,
        "-Wl,--whole-archive",
        &*archive,
        "-Wl,--no-whole-archive",
        "-lpthread",
        "-ldl",
        "-lm",
        "-lrt",
    ];
    command::run(folder, "cc", &arguments).context("linking the runtime of AddressSanitizer")?;
    Ok(library)
}

/// The target triple of this machine.
fn host_target() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("could not start rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
