//! Tests of the C++ binding: exported symbols, test programs under sanitizers and valgrind, and an example project that builds
//! against the CMake install.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{command, files};

/// System libraries that the static library needs.
const SYSTEM_LIBRARIES: [&str; 3] = ["-lpthread", "-ldl", "-lm"];
/// With sanitizers, GCC reports false positives of `maybe-uninitialized` for optionals.
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-maybe-uninitialized"];

/// Builds the C++ library and runs all tests of the binding.
pub fn test(root: &Path) -> Result<()> {
    let folder = root.join("target/cpp");
    fs::create_dir_all(&folder)?;
    command::cargo(root, &["build", "--package", "lz-cpp", "--package", "lz-cpp-cases"])?;
    let archive = root.join("target/debug/liblz_cpp.a");
    exports(root, &folder, &archive)?;
    programs(root, &folder, &archive)?;
    install(root, &folder)?;
    sources(root, &folder)
}

/// Builds a program of the example project with the sources of the checkout, as `FetchContent` does, and runs it.
fn sources(root: &Path, folder: &Path) -> Result<()> {
    let cmake = ensure_cmake(root)?;
    let build = text(&folder.join("sources"));
    let source = format!("-DLAYERZERO_SOURCE={}", text(root));
    let run = |arguments: &[&str]| command::run(root, &cmake, arguments);
    run(&[
        "-S",
        &text(&folder.join("outside")),
        "-B",
        &build,
        &source,
        "-DLAYERZERO_CARGO_PROFILE=dev",
        "-Wno-dev",
    ])?;
    run(&["--build", &build, "--target", "decode_step_shared"])?;
    command::run(root, &text(&Path::new(&build).join("decode_step_shared")), &[])
        .context("running a program that was built with FetchContent")
}

/// Runs the test programs with sanitizers, and the smoke test also under valgrind where it is available.
fn programs(root: &Path, folder: &Path, archive: &Path) -> Result<()> {
    let cases = folder.join("cases.bin");
    command::run(root, "target/debug/lz-cpp-cases", &[&text(&cases)])?;
    // Not optimized: compiling the headers of all operations takes longer than running the tests.
    let sanitized = Build {
        root,
        folder,
        archive,
        name: "sanitized",
        flags: &["-O0", "-g0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    };
    let smoke = ["tests/cpp-ops/smoke.cpp"];
    let operations =
        ["tests/cpp-ops/generated/checks.cpp", "tests/cpp-ops/case.cpp", "tests/cpp-ops/main.cpp"];
    sanitized.compile(&[&operations[..], &smoke].concat())?;
    let program = sanitized.link("smoke", &smoke)?;
    command::run(root, &text(&program), &[]).context("the smoke test under AddressSanitizer and UBSan")?;
    let program = sanitized.link("operations", &operations)?;
    command::run(root, &text(&program), &[&text(&cases)])
        .context("the tests of all operations under AddressSanitizer and UBSan")?;
    let valgrind = match ensure_valgrind(root) {
        Ok(valgrind) => valgrind,
        Err(error) => {
            println!(
                "SKIPPED: the smoke test under valgrind, because valgrind is not installed and cannot be downloaded: {error:#}"
            );
            return Ok(());
        }
    };
    let plain = Build { name: "plain", flags: &["-O0", "-g"], ..sanitized };
    plain.compile(&smoke)?;
    let program = text(&plain.link("smoke", &smoke)?);
    let mut arguments = vec![
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
    ];
    let symbols =
        valgrind.symbols.as_deref().map(|folder| format!("--extra-debuginfo-path={}", text(folder)));
    arguments.extend(symbols.as_deref());
    arguments.push(&program);
    // Valgrind runs one thread at a time: the others would wait for work with the time of the first.
    let mut environment =
        vec![("LAYERZERO_THREADS", Path::new("1")), ("SMOKE_UNDER_VALGRIND", Path::new("1"))];
    environment.extend(valgrind.library.as_deref().map(|folder| ("VALGRIND_LIB", folder)));
    command::run_with(root, &valgrind.program, &arguments, &environment)
        .context("the smoke test under valgrind")
}

/// The paths of valgrind.
struct Valgrind {
    program: String,
    /// Valgrind's library folder, if it is not the system's installation.
    library: Option<PathBuf>,
    /// Debug symbols of the C library, if not installed.
    symbols: Option<PathBuf>,
}

/// Finds the system's valgrind, or downloads Debian's package into `target/tools`.
fn ensure_valgrind(root: &Path) -> Result<Valgrind> {
    if Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(Valgrind { program: "valgrind".to_owned(), library: None, symbols: None });
    }
    let tools = root.join("target/tools/valgrind");
    let program = tools.join("usr/bin/valgrind");
    if !program.is_file() {
        fs::create_dir_all(&tools)?;
        for package in ["valgrind", "libc6-dbg"] {
            command::run(&tools, "apt-get", &["download", package]).context("downloading from Debian")?;
        }
        for entry in fs::read_dir(&tools)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                command::run(&tools, "dpkg", &["--extract", &text(&path), "."])?;
                fs::remove_file(&path)?;
            }
        }
    }
    Ok(Valgrind {
        program: text(&program),
        library: Some(tools.join("usr/libexec/valgrind")),
        symbols: Some(tools.join("usr/lib/debug")),
    })
}

/// A set of compiler flags, and the folder for programs compiled with them.
struct Build<'a> {
    root: &'a Path,
    folder: &'a Path,
    archive: &'a Path,
    name: &'a str,
    flags: &'a [&'a str],
}

impl Build<'_> {
    /// Compiles sources in parallel.
    fn compile(&self, sources: &[&str]) -> Result<()> {
        fs::create_dir_all(self.folder.join(self.name))?;
        let compile_one = |source: &str| {
            let object = text(&self.object(source));
            let mut arguments =
                vec!["-std=c++20", "-I", "bindings/cpp/include", "-I", "runtime/plugin/include"];
            arguments.extend(WARNINGS);
            arguments.extend(self.flags);
            arguments.extend(["-c", source, "-o", &object]);
            command::run(self.root, "g++", &arguments)
        };
        std::thread::scope(|scope| {
            let running: Vec<_> =
                sources.iter().map(|source| scope.spawn(move || compile_one(source))).collect();
            running
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a compile thread panicked")))
        })
    }

    /// Links compiled sources with the static library.
    fn link(&self, name: &str, sources: &[&str]) -> Result<PathBuf> {
        let program = self.folder.join(self.name).join(name);
        let objects: Vec<String> = sources.iter().map(|source| text(&self.object(source))).collect();
        let (archive, output) = (text(self.archive), text(&program));
        let mut arguments = self.flags.to_vec();
        arguments.extend(objects.iter().map(String::as_str));
        arguments.extend([archive.as_str(), "-o", &output]);
        arguments.extend(SYSTEM_LIBRARIES);
        command::run(self.root, "g++", &arguments)?;
        Ok(program)
    }

    fn object(&self, source: &str) -> PathBuf {
        let stem = Path::new(source).file_stem().unwrap_or_default();
        self.folder.join(self.name).join(stem).with_extension("o")
    }
}

/// Compiles one source with the headers of a checkout, and links it with the static library.
pub fn compile_program(checkout: &Path, source: &Path, archive: &Path, program: &Path) -> Result<()> {
    let (source, archive, program) = (text(source), text(archive), text(program));
    let mut arguments =
        vec!["-std=c++20", "-O0", "-I", "bindings/cpp/include", "-I", "runtime/plugin/include"];
    arguments.extend([source.as_str(), archive.as_str(), "-o", &program]);
    arguments.extend(SYSTEM_LIBRARIES);
    command::run(checkout, "g++", &arguments)
}

/// Links the shared library and checks its exported symbols.
fn exports(root: &Path, folder: &Path, archive: &Path) -> Result<()> {
    let library = folder.join("liblayerzero.so");
    let map = format!("-Wl,--version-script={}", text(&root.join("bindings/cpp/cmake/exports.map")));
    let (archive, output) = (text(archive), text(&library));
    let mut arguments = vec!["-shared", &map, "-Wl,--gc-sections", "-Wl,--no-undefined"];
    arguments.extend(["-Wl,--whole-archive", &archive, "-Wl,--no-whole-archive", "-o", &output]);
    arguments.extend(SYSTEM_LIBRARIES);
    command::run(root, "g++", &arguments)?;
    let nm = Command::new("nm").args(["-D", "--defined-only", "--demangle"]).arg(&library).output()?;
    let symbols = String::from_utf8_lossy(&nm.stdout).into_owned();
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.splitn(3, ' ').nth(2)).collect();
    let allowed = |name: &&&str| {
        let functions = ["lz_", "cxxbridge1", "lz::bridge::", "rust::cxxbridge1::"];
        let tables = [
            "typeinfo for rust::cxxbridge1::",
            "typeinfo name for rust::cxxbridge1::",
            "vtable for rust::cxxbridge1::",
        ];
        functions.iter().chain(&tables).any(|prefix| name.starts_with(prefix))
            // The demangled names of function templates begin with the return type.
            || name.contains(" rust::cxxbridge1::")
    };
    let unexpected: Vec<&&str> = names.iter().filter(|name| !allowed(name)).collect();
    if !unexpected.is_empty() {
        bail!("the shared library exports symbols other than lz_* and those of cxx: {unexpected:?}");
    }
    if !names.iter().any(|name| name.starts_with("lz::bridge::norm_rms(")) {
        bail!("the shared library does not export the operations: `lz::bridge::norm_rms` is missing");
    }
    println!("the shared library exports {} symbols, all lz_* or cxx", names.len());
    Ok(())
}

/// Installs in the dev profile, moves the folder, and uses it there.
fn install(root: &Path, folder: &Path) -> Result<()> {
    let (prefix, moved) = (folder.join("install"), folder.join("moved"));
    install_with(root, folder, "dev", &prefix)?;
    if moved.exists() {
        fs::remove_dir_all(&moved)?;
    }
    fs::rename(&prefix, &moved)?;
    try_install(root, folder, &moved)
}

/// Installs in the release profile into a folder that is named as the archive, and returns the folder.
pub fn install_release(root: &Path, folder: &Path) -> Result<PathBuf> {
    let name = format!("layerzero-cpp-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let prefix = folder.join(name);
    install_with(root, folder, "release", &prefix)?;
    Ok(prefix)
}

/// Builds with CMake and installs into a folder.
fn install_with(root: &Path, folder: &Path, profile: &str, prefix: &Path) -> Result<()> {
    let cmake = ensure_cmake(root)?;
    if prefix.exists() {
        fs::remove_dir_all(prefix)?;
    }
    let build = text(&folder.join("build"));
    let profile = format!("-DLAYERZERO_CARGO_PROFILE={profile}");
    let run = |arguments: &[&str]| command::run(root, &cmake, arguments);
    run(&["-S", "bindings/cpp", "-B", &build, &profile, "-Wno-dev"])?;
    command::build(root, &cmake, &["--build", &build], &[])?;
    run(&["--install", &build, "--prefix", &text(prefix)])
}

/// Builds the example project against an install with CMake and with pkg-config, and runs it.
pub fn try_install(root: &Path, folder: &Path, prefix: &Path) -> Result<()> {
    let cmake = ensure_cmake(root)?;
    let example = text(&folder.join("example"));
    let run = |arguments: &[&str]| command::run(root, &cmake, arguments);
    // The example is copied so that it cannot include files of the checkout.
    let outside = folder.join("outside");
    fs::create_dir_all(&outside)?;
    for name in ["CMakeLists.txt", "decode_step.cpp", "isolated.cpp", "vendor.cpp"] {
        fs::copy(root.join("examples/cpp").join(name), outside.join(name))?;
    }
    let prefix_path = format!("-DCMAKE_PREFIX_PATH={}", text(prefix));
    // CMake would keep the paths of an earlier install.
    if Path::new(&example).exists() {
        fs::remove_dir_all(&example)?;
    }
    run(&["-S", &text(&outside), "-B", &example, &prefix_path])?;
    run(&["--build", &example, "--parallel"])?;
    for program in ["decode_step_shared", "decode_step_static"] {
        command::run(root, &text(&Path::new(&example).join(program)), &[])?;
    }
    let (plugin, worker) =
        (text(&Path::new(&example).join("libvendor.so")), text(&prefix.join("bin/lz-worker")));
    let isolated = text(&Path::new(&example).join("isolated"));
    command::run(root, &isolated, &[&example, &plugin, &worker])
        .context("running a plugin in a worker process")?;
    pkg_config(root, &outside.join("decode_step.cpp"), prefix).context("using the install with pkg-config")
}

/// Compiles a program with the flags that pkg-config prints for an install, and runs it.
fn pkg_config(root: &Path, source: &Path, prefix: &Path) -> Result<()> {
    let files = files::walk(prefix)?;
    let file = files
        .iter()
        .find(|path| path.ends_with("pkgconfig/layerzero.pc"))
        .context("the install has no file pkgconfig/layerzero.pc")?;
    let output = Command::new("pkg-config")
        .args(["--cflags", "--libs", "layerzero"])
        .env("PKG_CONFIG_PATH", file.parent().context("the file has no folder")?)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            println!(
                "SKIPPED: a program that is built with pkg-config, because pkg-config does not start: {error}"
            );
            return Ok(());
        }
    };
    ensure!(output.status.success(), "pkg-config failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let flags = String::from_utf8(output.stdout)?;
    let (source, program) = (text(source), text(&source.with_extension("")));
    let mut arguments = vec!["-O0", source.as_str(), "-o", &program];
    arguments.extend(flags.split_whitespace());
    command::run(root, "g++", &arguments)?;
    let library = file.ancestors().nth(2).context("the file has no folder")?;
    command::run_with(root, &program, &[], &[("LD_LIBRARY_PATH", library)])
}

/// Finds the system's CMake, or installs one from PyPI into `target/tools`.
pub fn ensure_cmake(root: &Path) -> Result<String> {
    if Command::new("cmake").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok("cmake".to_owned());
    }
    let tools = root.join("target/tools/cmake");
    let cmake = tools.join("bin/cmake");
    if !cmake.is_file() {
        command::run(root, "python3", &["-m", "venv", &text(&tools)])
            .context("creating a virtual environment for CMake")?;
        let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "cmake>=3.20"];
        command::run(root, &text(&tools.join("bin/python")), &arguments).context("installing CMake")?;
    }
    Ok(text(&cmake))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
