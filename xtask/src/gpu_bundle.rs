//! `cargo xtask gpu-bundle`: everything that a machine with a GPU, without a network and without Rust, needs to run the GPU's tests
//! and benchmarks: the wheel, pinned wheels of others, the programs, and `run_gpu.py` that installs and runs them.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{command, python};

/// Wheels of others, exactly; torch and Triton are the machine's own. FlashInfer compiles with the machine's nvcc and ninja.
const WHEELS: &[&str] = &[
    "flashinfer-python==0.6.4",
    "apache-tvm-ffi==0.1.9",
    "liger-kernel==0.8.5",
    "einops==0.8.2",
    "click==8.5.1",
    "tabulate==0.10.0",
    "nvidia-ml-py==13.615.71",
];

/// What pip calls machines whose wheels run there.
const PLATFORMS: [&str; 4] =
    ["manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64", "any"];

/// Makes the folder `target/gpu-bundle` and an archive of it. `--python 3.12` says which Python the machine has.
pub fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let version = match flags {
        [] => "3.12",
        ["--python", version] => version,
        _ => bail!("cargo xtask gpu-bundle takes --python VERSION and nothing else"),
    };
    let python = python::ensure_venv(root)?.to_string_lossy().into_owned();
    let bundle = root.join("target/gpu-bundle");
    if bundle.exists() {
        std::fs::remove_dir_all(&bundle)?;
    }
    let wheels = bundle.join("wheels").to_string_lossy().into_owned();
    std::fs::create_dir_all(&wheels)?;
    let build = ["-m", "maturin", "build", "--quiet", "--release", "--out", &wheels];
    command::run(&root.join("bindings/python"), &python, &build).context("building the wheel")?;
    let mut download = vec!["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    download.extend(["--only-binary", ":all:", "--python-version", version, "--dest", &wheels]);
    for platform in PLATFORMS {
        download.extend(["--platform", platform]);
    }
    download.extend(WHEELS);
    command::run(root, &python, &download).context("fetching wheels")?;
    let programs = root.join("bindings/python/tests/cuda");
    std::fs::create_dir_all(bundle.join("cuda"))?;
    for entry in std::fs::read_dir(&programs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "py")
            && let Some(name) = path.file_name()
        {
            let folder = if name == "run_gpu.py" { bundle.clone() } else { bundle.join("cuda") };
            std::fs::copy(&path, folder.join(name))?;
        }
    }
    command::run(&root.join("target"), "tar", &["-czf", "gpu-bundle.tar.gz", "gpu-bundle"])
        .context("packing the bundle")?;
    let size = std::fs::metadata(root.join("target/gpu-bundle.tar.gz"))?.len();
    println!("target/gpu-bundle.tar.gz, {} MiB; there: python run_gpu.py --output out", size >> 20);
    Ok(())
}
