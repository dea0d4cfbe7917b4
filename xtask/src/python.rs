//! The Python package: creates `.venv` in the checkout, builds and installs the package into it, and runs its tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::command;
use crate::files;
use crate::oracles::{FLASHINFER_REFERENCES, SGLANG, VLLM};
use crate::python_packages::{
    DOCS, GRAPH_PEERS, MODELS, ORACLES, ORACLES_WITHOUT_DEPENDENCIES, PEERS, PEERS_WITHOUT_DEPENDENCIES,
    REAL_WEIGHTS, SAMPLE_BACKEND, TOKENIZER_PEERS, TOKENIZERS, TORCH, VLLM_IMPORTS, ensure, ensure_venv,
    sglang_imports,
};
use crate::tokenizers::ensure_tokenizer_data;

/// Set for processes that xtask starts after the package is installed: installing it again would remove it for a moment, while other
/// tests import it.
pub const IS_INSTALLED: &str = "XTASK_PACKAGE_IS_INSTALLED";

/// Builds the package in the dev profile and installs it into the virtual environment, once per run of xtask.
pub fn install(root: &Path) -> Result<PathBuf> {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    if let Some(python) = INSTALLED.get() {
        return Ok(python.clone());
    }
    if std::env::var_os(IS_INSTALLED).is_some() {
        return ensure_venv(root);
    }
    let python = install_with(root, &[])?;
    Ok(INSTALLED.get_or_init(|| python).clone())
}

fn install_with(root: &Path, flags: &[&str]) -> Result<PathBuf> {
    let python = ensure_venv(root)?;
    let folder = root.join("bindings/python");
    let arguments = [&["-m", "maturin", "develop"], flags].concat();
    command::build(&folder, &python.to_string_lossy(), &arguments, &[("VIRTUAL_ENV", &root.join(".venv"))])
        .context("building the Python package")?;
    Ok(python)
}

/// Runs the tests of a folder and prints the slowest ones.
pub fn pytest(root: &Path, python: &Path, folder: &str, environment: &[(&str, &Path)]) -> Result<()> {
    // Tests run at the same time as other processes: waiting threads of torch and NumPy must not occupy a core.
    let passive = [("OMP_WAIT_POLICY", Path::new("passive")), ("OPENBLAS_NUM_THREADS", Path::new("1"))];
    let environment = [environment, &passive].concat();
    command::run_with(
        &root.join("bindings/python"),
        &python.to_string_lossy(),
        &["-m", "pytest", "-q", "--durations=8", folder],
        &environment,
    )
}

/// Runs the tests that do not need torch.
pub fn test(root: &Path) -> Result<()> {
    let python = install(root)?;
    ensure(root, &SAMPLE_BACKEND)?;
    ensure(root, &DOCS)?;
    pytest(root, &python, "tests/light", &[])
}

/// Runs the tests that need torch.
pub fn test_torch(root: &Path) -> Result<()> {
    let python = install(root)?;
    ensure(root, &TORCH)?;
    pytest(root, &python, "tests/torch", &[])
}

/// Compares the results of operations with other libraries.
pub fn test_oracles(root: &Path) -> Result<()> {
    let python = install(root)?;
    ensure(root, &TORCH)?;
    ensure(root, &MODELS)?;
    ensure(root, &ORACLES)?;
    ensure(root, &ORACLES_WITHOUT_DEPENDENCIES)?;
    let references = FLASHINFER_REFERENCES.ensure(root)?;
    pytest(root, &python, "tests/oracles", &[("PYTHONPATH", &references)])
}

/// Runs the tests that need model libraries.
pub fn test_models(root: &Path) -> Result<()> {
    let python = install(root)?;
    ensure(root, &TORCH)?;
    ensure(root, &MODELS)?;
    ensure(root, &VLLM_IMPORTS)?;
    ensure(root, &TOKENIZERS)?;
    ensure(root, &REAL_WEIGHTS)?;
    ensure_tokenizer_data(root)?;
    pytest(root, &python, "tests/models", &[])?;
    // Each in a process of its own: importing them changes torch and Transformers.
    let vllm = VLLM.ensure(root)?;
    pytest(root, &python, "tests/vllm", &[("PYTHONPATH", &vllm)])?;
    let folders = std::env::join_paths([SGLANG.ensure(root)?, sglang_imports(root)?])?;
    pytest(root, &python, "tests/sglang", &[("PYTHONPATH", Path::new(&folders))])
}

/// Builds the wheel and tests it in an otherwise empty virtual environment.
pub fn test_wheel(root: &Path) -> Result<()> {
    let python = ensure_venv(root)?;
    let wheels = wheel_folder(root);
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels)?;
    }
    let wheel = wheel(root)?;
    try_wheel(root, &python, &wheel).map(drop)
}

fn wheel_folder(root: &Path) -> PathBuf {
    root.join("target/wheel/dist")
}

/// The wheel in the dev profile, which is built unless it is there.
pub fn wheel(root: &Path) -> Result<PathBuf> {
    let python = ensure_venv(root)?;
    let wheels = wheel_folder(root);
    if !wheels.exists() {
        let out = wheels.to_string_lossy();
        // Compressing the unoptimized library takes longer than everything else here.
        let stored = ["--compression-method", "stored"];
        let build = [&["-m", "maturin", "build", "--profile", "dev", "--out", &*out], &stored[..]].concat();
        command::build(&root.join("bindings/python"), &python.to_string_lossy(), &build, &[])
            .context("building the wheel")?;
    }
    files::only(&wheels, "whl")
}

/// Installs a wheel into an otherwise empty virtual environment, uses it there, and returns the interpreter.
pub fn try_wheel(root: &Path, python: &Path, wheel: &Path) -> Result<PathBuf> {
    let folder = root.join("target/wheel");
    let venv = folder.join("venv");
    if venv.exists() {
        std::fs::remove_dir_all(&venv)?;
    }
    command::run(root, &python.to_string_lossy(), &["-m", "venv", &*venv.to_string_lossy()])?;
    let empty = venv.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
    let wheel = wheel.to_string_lossy();
    command::run(root, &empty.to_string_lossy(), &[&install[..], &[&*wheel]].concat())?;
    // Runs outside the checkout, so that `import` finds the installed package and not the sources.
    let check = "import array, layerzero as lz; x = array.array('f', [3, 4]); \
                 assert abs(lz.ops.norm_rms(x)[0] - 0.848528) < 1e-5; assert lz.readiness_check().data['ready']";
    command::run(&folder, &empty.to_string_lossy(), &["-c", check])?;
    let program = venv.join("bin/lz");
    command::run(&folder, &program.to_string_lossy(), &["kernels", "norm.rms"])?;
    command::run(&folder, &program.to_string_lossy(), &["docs"])?;
    isolated_plugin(root, &folder, &empty)?;
    Ok(empty)
}

/// Runs the tour with an interpreter that [`try_wheel`] returned. The tour needs NumPy.
pub fn tour_of_wheel(root: &Path, python: &Path) -> Result<()> {
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy"];
    command::run(root, &python.to_string_lossy(), &install)?;
    let tour = root.join("examples/python/tour.py");
    // Python imports from the folder of the script, which has no other file.
    command::run(&root.join("target/wheel"), &python.to_string_lossy(), &[&*tour.to_string_lossy()])
        .context("running the tour with the installed wheel")
}

/// Loads a plugin into a worker process: an installed wheel has everything that this needs.
fn isolated_plugin(root: &Path, folder: &Path, python: &Path) -> Result<()> {
    let plugin = folder.join("plugin/versioned.so");
    std::fs::create_dir_all(folder.join("plugin"))?;
    let (output, include) = (plugin.to_string_lossy(), root.join("runtime/plugin/include"));
    let compile =
        ["-std=gnu11", "-shared", "-fPIC", "-O1", "-DFAULT_FIRST", "-I", &*include.to_string_lossy()];
    let files = ["tests/plugins/native/versioned.c", "-o", &*output, "-lm"];
    command::run(root, "gcc", &[&compile[..], &files].concat()).context("compiling a plugin")?;
    let check = "import array, pathlib, sys, layerzero as lz; plugin = pathlib.Path(sys.argv[1]); \
                 lz.configure({'plugins.directories': [str(plugin.parent)], 'backend_isolation': 'subprocess'}); \
                 loaded = lz.load_plugin(plugin); assert loaded.runs_in, loaded; \
                 lz.lock('norm.rms', 'versioned.norm.rms'); x = array.array('f', [3, 4]); \
                 assert abs(lz.ops.norm_rms(x)[0] - 0.848528) < 1e-5; print('isolated:', loaded.runs_in)";
    command::run(folder, &python.to_string_lossy(), &["-c", check, &output])
        .context("running a plugin of an installed wheel in a worker process")
}

/// Measures call overhead in the release profile, compared with other libraries.
pub fn bench(root: &Path, flags: &[&str]) -> Result<()> {
    let python = install_with(root, &["--release"])?;
    ensure(root, &TORCH)?;
    ensure(root, &PEERS)?;
    ensure(root, &PEERS_WITHOUT_DEPENDENCIES)?;
    let arguments = [&["benches/calls.py"], flags].concat();
    command::run(&root.join("bindings/python"), &python.to_string_lossy(), &arguments)
}

/// Measures compiled models in the release profile, compared with other runtimes.
pub fn bench_graph(root: &Path, flags: &[&str]) -> Result<()> {
    let python = install_with(root, &["--release"])?;
    ensure(root, &TORCH)?;
    ensure(root, &MODELS)?;
    ensure(root, &GRAPH_PEERS)?;
    let arguments = [&["benches/graph.py"], flags].concat();
    command::run(&root.join("bindings/python"), &python.to_string_lossy(), &arguments)?;
    let json: Vec<&str> = flags.iter().copied().filter(|flag| *flag == "--json").collect();
    command::cargo(
        root,
        &[&["run", "--release", "--package", "bench-graph", "--"][..], json.as_slice()].concat(),
    )
}

/// Measures first passes of tokenizers in the release profile, compared with the fastest other libraries.
pub fn bench_tokenizers(root: &Path, flags: &[&str]) -> Result<()> {
    let data = ensure_tokenizer_data(root)?;
    let python = install_with(root, &["--release"])?;
    // A folder of their own: `.venv` has another release of `tokenizers`.
    let peers = root.join("target/tokenizer-peers");
    if !peers.is_dir() {
        let folder = peers.to_string_lossy();
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", &*folder];
        command::run(root, &python.to_string_lossy(), &[&pip[..], &TOKENIZER_PEERS].concat())
            .context("installing the other tokenizer libraries")?;
    }
    let data = data.to_string_lossy();
    let arguments = [&["benches/tokenize_cold.py", &*data], flags].concat();
    let folder = root.join("bindings/python");
    command::run_with(&folder, &python.to_string_lossy(), &arguments, &[("PYTHONPATH", &peers)])
}

/// Tunes the workloads of the schemas, as listed by the CPU benchmark, and compares the selected kernels with the fastest ones.
pub fn bench_tuned(root: &Path, flags: &[&str]) -> Result<()> {
    let python = install_with(root, &["--release"])?;
    ensure(root, &TORCH)?;
    let path = root.join("target/workload-calls.jsonl");
    let path = &*path.to_string_lossy();
    let list = ["run", "--release", "--package", "bench-cpu", "--", "--calls", path];
    command::cargo(root, &list).context("listing the calls of the workloads")?;
    let arguments = [&["benches/tuned.py", path], flags].concat();
    command::run(&root.join("bindings/python"), &python.to_string_lossy(), &arguments)
}
