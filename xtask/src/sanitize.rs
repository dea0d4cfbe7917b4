//! `cargo xtask sanitize`: the Python extension and the tests of the core crates under AddressSanitizer.
//!
//! The interpreter is not instrumented, so the sanitizer's runtime is loaded before it (`LD_PRELOAD`). The runtime is that of the
//! toolchain, linked into a shared library; that of another compiler may have another version. The build has a target folder of
//! its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{command, python_packages};

/// Checks reads and writes of memory. Memory that is never freed is not reported: the interpreter and the engine keep some until the
/// process ends. The tests raise signals on purpose, which must reach their handlers.
const OPTIONS: &str = "detect_leaks=0:allocator_may_return_null=1:handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0:handle_abort=0:\
                       allow_user_segv_handler=1:detect_stack_use_after_return=0:symbolize=1";

/// Tests that cannot run under the sanitizer.
const NOT_SANITIZED: &[&str] = &[
    // Freed memory stays in quarantine, so resident memory grows with the calls.
    "tests/light/test_must_hold.py::test_ten_thousand_calls_do_not_leak",
    // A tokenizer library is compared on every code point, which takes longer than the test waits.
    "tests/light/test_cli.py::test_tokens_of_a_text",
    // The copy of the package is outside the checkout and has no pages.
    "tests/light/test_registration.py::test_every_page_that_is_referred_to_is_printed",
    // Starts an interpreter with an environment of its own, without the sanitizer's runtime.
    "tests/light/test_secrets.py::test_secrets_are_not_logged",
];

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
    let interpreter = python_packages::ensure_venv(root)?;
    cargo(root, target, &["build", "--package", "lz-python"], "-Zsanitizer=address -Zexternal-clangrt")?;
    let folder = root.join("target/asan");
    let library = folder.join(target).join("debug/lib_native.so");
    let package = package(root, &folder, &library).context("copying the Python package")?;
    let runtime = runtime(&folder, target)?;
    let reports = Reports::new(&folder)?;
    let options = format!("{OPTIONS}:log_path={}", reports.prefix().display());
    let mut arguments = vec!["-m", "pytest", "-q", "--durations=8", "-p", "no:cacheprovider", "tests/light"];
    for test in NOT_SANITIZED {
        arguments.extend(["--deselect", test]);
    }
    arguments.extend(pytest);
    let environment = [
        ("LD_PRELOAD", runtime.as_path()),
        ("PYTHONPATH", package.as_path()),
        ("ASAN_OPTIONS", Path::new(&options)),
        ("PYTHONMALLOC", Path::new("malloc")),
    ];
    let folder = root.join("bindings/python");
    let outcome = command::run_with(&folder, &interpreter.to_string_lossy(), &arguments, &environment);
    // A report explains why the interpreter ended, so it comes first.
    reports.check()?;
    outcome.context("Python tests under AddressSanitizer")
}

/// What the sanitizer reports, one file for each process. On its standard error pytest would keep it to itself, and a process that a test
/// starts could report something that no test notices.
struct Reports(PathBuf);

impl Reports {
    /// An empty folder.
    fn new(folder: &Path) -> Result<Reports> {
        let folder = folder.join("reports");
        crate::files::create_empty(&folder)?;
        Ok(Reports(folder))
    }

    /// The sanitizer appends the number of the process.
    fn prefix(&self) -> PathBuf {
        self.0.join("process")
    }

    /// Fails with the first report of an error. Other lines are warnings, such as those about refused allocations.
    fn check(&self) -> Result<()> {
        for path in crate::files::walk(&self.0)? {
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            let error = text.find("ERROR: AddressSanitizer").or_else(|| text.find("CHECK failed"));
            if let Some(start) = error {
                anyhow::bail!("AddressSanitizer ({}):\n{}", path.display(), &text[start..]);
            }
        }
        Ok(())
    }
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
        // The runtime replaces functions of the C++ library and looks up the originals when it starts, before an extension loads it.
        "-Wl,--no-as-needed",
        "-lstdc++",
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

#[cfg(test)]
mod tests {
    use lz_test_support::Folder;

    use super::*;

    #[test]
    fn reports_of_errors_are_found_and_warnings_are_not() {
        let temporary = Folder::new();
        let folder = temporary.file("reports");
        let reports = Reports::new(&folder).unwrap();
        let of_process = |number: u32| PathBuf::from(format!("{}.{number}", reports.prefix().display()));
        std::fs::write(of_process(7), "==7==WARNING: AddressSanitizer failed to allocate 0x10 bytes\n")
            .unwrap();
        reports.check().unwrap();
        std::fs::write(of_process(8), "==8==ERROR: AddressSanitizer: heap-use-after-free on address\n")
            .unwrap();
        let error = reports.check().unwrap_err().to_string();
        assert!(error.contains("heap-use-after-free"), "{error}");
        Reports::new(&folder).unwrap().check().unwrap();
    }
}
