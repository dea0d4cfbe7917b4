//! `cargo xtask gpu-bundle`: an archive to run the GPU tests and benchmarks on a machine without network and without Rust.
//!
//! It contains the LayerZero wheel, pinned wheels of other packages, the tests, and `run_gpu.py`, which installs and runs them.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{command, python_packages};

/// Pinned wheels of other packages. The GPU machine provides torch, Triton, and nvcc and ninja, with which FlashInfer compiles.
const WHEELS: &[&str] = &[
    "flashinfer-python==0.6.4",
    "apache-tvm-ffi==0.1.9",
    "liger-kernel==0.8.5",
    "einops==0.8.2",
    "click==8.5.1",
    "tabulate==0.10.0",
    "nvidia-ml-py==13.615.71",
];

/// Platform tags of the wheels that pip may download.
const PLATFORMS: [&str; 4] =
    ["manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64", "any"];

/// Creates the folder `target/gpu-bundle` and its archive. `--python 3.12` is the Python version of the GPU machine.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let version = match flags {
        [] => "3.12",
        ["--python", version] => version,
        _ => bail!("usage: cargo xtask gpu-bundle [--python VERSION]"),
    };
    let python = python_packages::ensure_venv(root)?.to_string_lossy().into_owned();
    let bundle = root.join("target/gpu-bundle");
    if bundle.exists() {
        std::fs::remove_dir_all(&bundle)?;
    }
    let wheels = bundle.join("wheels").to_string_lossy().into_owned();
    std::fs::create_dir_all(&wheels)?;
    let build = ["-m", "maturin", "build", "--release", "--out", &wheels];
    command::build(&root.join("bindings/python"), &python, &build, &[]).context("building the wheel")?;
    let mut download = vec!["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    download.extend(["--only-binary", ":all:", "--python-version", version, "--dest", &wheels]);
    for platform in PLATFORMS {
        download.extend(["--platform", platform]);
    }
    download.extend(WHEELS);
    command::run(root, &python, &download).context("downloading wheels")?;
    let programs = root.join("bindings/python/tests/cuda");
    std::fs::create_dir_all(bundle.join("cuda"))?;
    for entry in std::fs::read_dir(&programs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "py")
            && let Some(name) = path.file_name()
        {
            let folder = if name == "run_gpu.py" { bundle.clone() } else { bundle.join("cuda") };
            std::fs::copy(&path, folder.join(name))?;
        }
    }
    command::run(&root.join("target"), "tar", &["-czf", "gpu-bundle.tar.gz", "gpu-bundle"])
        .context("packing the bundle")?;
    let size = std::fs::metadata(root.join("target/gpu-bundle.tar.gz"))?.len();
    println!(
        "target/gpu-bundle.tar.gz, {} MiB; on the GPU machine, run `python run_gpu.py --output out`",
        size >> 20
    );
    Ok(())
}
