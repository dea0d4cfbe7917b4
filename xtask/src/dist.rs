//! `cargo xtask dist`: builds what a release consists of into `dist/`: the source distribution, the wheel that is built from it, the
//! C++ libraries, the crates, a bill of materials and checksums. Each is installed and used before the command succeeds.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{command, conan, cpp, files, metadata, notices, packages, python, python_packages, sbom, vcpkg};

/// The release wheel must stay below this size.
const MAX_WHEEL_BYTES: u64 = 64 << 20;

/// Builds and checks everything.
pub fn run(root: &Path) -> Result<()> {
    notices::run(root, true)?;
    let dist = root.join("dist");
    files::create_empty(&dist)?;
    let python = python_packages::ensure_venv(root)?;
    let sdist = packages::sdist(root, &python, &dist)?;
    let wheel = wheel_of(root, &python, &sdist, &dist)?;
    packages::audit(root, &python, &wheel)?;
    packages::inspect(root, &python, &wheel, &sdist)?;
    let installed = python::try_wheel(root, &python, &wheel)?;
    python::tour_of_wheel(root, &installed)?;
    cpp_tarball(root, &dist)?;
    conan::check(root, "release")?;
    vcpkg::check(root)?;
    crates(root, &dist)?;
    let description = metadata::read(root)?;
    let document = sbom::document(&version(&description)?, &metadata::third_party(root)?);
    fs::write(dist.join("layerzero.cdx.json"), serde_json::to_string_pretty(&document)? + "\n")?;
    checksums(&dist)
}

/// Builds the wheel from the source distribution, in a folder outside of the checkout's packages, and checks its size.
fn wheel_of(root: &Path, python: &Path, sdist: &Path, dist: &Path) -> Result<PathBuf> {
    let folder = root.join("target/dist/sdist");
    let source = packages::unpack(root, python, sdist, &folder)?;
    let out = dist.to_string_lossy();
    // The target folder of the checkout, so that third-party packages are not built again.
    let target = root.join("target");
    let arguments = ["-m", "maturin", "build", "--release", "--out", &*out];
    let built =
        command::build(&source, &python.to_string_lossy(), &arguments, &[("CARGO_TARGET_DIR", &target)]);
    // Cargo would reuse artifacts built from the copy for the checkout as long as the copy exists unchanged.
    fs::remove_dir_all(&source).with_context(|| format!("removing {}", source.display()))?;
    built.context("building the wheel from the source distribution")?;
    let wheel = files::only(dist, "whl")?;
    let bytes = fs::metadata(&wheel)?.len();
    println!("{}: {:.1} MB", wheel.display(), bytes as f64 / 1e6);
    ensure!(
        bytes <= MAX_WHEEL_BYTES,
        "the wheel has {bytes} bytes, more than the limit of {MAX_WHEEL_BYTES}"
    );
    Ok(wheel)
}

/// Installs the C++ libraries in the release profile into a folder, packs it, and builds the examples against what another folder unpacks.
fn cpp_tarball(root: &Path, dist: &Path) -> Result<()> {
    let folder = root.join("target/dist/cpp");
    fs::create_dir_all(&folder)?;
    let prefix = cpp::install_release(root, &folder)?;
    for file in ["LICENSE", "THIRD_PARTY_NOTICES.md"] {
        fs::copy(root.join(file), prefix.join(file)).with_context(|| format!("copying {file}"))?;
    }
    let name = prefix.file_name().context("the prefix has no name")?.to_string_lossy().into_owned();
    let archive = dist.join(format!("{name}.tar.gz")).to_string_lossy().into_owned();
    command::run(&folder, "tar", &["--owner=0", "--group=0", "--sort=name", "-czf", &archive, &name])?;
    fs::remove_dir_all(&prefix)?;
    let unpacked = folder.join("unpacked");
    files::create_empty(&unpacked)?;
    command::run(&unpacked, "tar", &["-xzf", &archive])?;
    cpp::try_install(root, &folder, &unpacked.join(name)).context("using the C++ archive")
}

/// Packs the crates that others may depend on.
fn crates(root: &Path, dist: &Path) -> Result<()> {
    let names = packages::pack_crates(root)?;
    let folder = dist.join("crates");
    fs::create_dir_all(&folder)?;
    let version = version(&metadata::read(root)?)?;
    for name in &names {
        let file = format!("{name}-{version}.crate");
        fs::copy(root.join("target/package").join(&file), folder.join(&file))
            .with_context(|| format!("cargo package wrote no {file}"))?;
    }
    println!("{} crates in {}", names.len(), folder.display());
    try_crates(root, &folder, &names, &version).context("using the packed crates")
}

/// Runs the tour in a project outside of the workspace that depends on `layerzero` and gets all crates from their packages.
fn try_crates(root: &Path, crates: &Path, names: &[String], version: &str) -> Result<()> {
    let project = root.join("target/dist/crates");
    files::create_empty(&project)?;
    let mut manifest = format!(
        "[package]\nname = \"tour\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nlayerzero = \"={version}\"\n\n\
         [profile.dev]\ndebug = false\nincremental = false\n\n\
         [workspace]\n\n[patch.crates-io]\n"
    );
    for name in names {
        let folder = format!("{name}-{version}");
        let archive = crates.join(format!("{folder}.crate"));
        command::run(&project, "tar", &["-xzf", &archive.to_string_lossy()])?;
        manifest += &format!("{name} = {{ path = \"{folder}\" }}\n");
    }
    files::write(&project.join("Cargo.toml"), &manifest)?;
    fs::create_dir_all(project.join("src"))?;
    fs::copy(root.join("examples/rust/tour.rs"), project.join("src/main.rs"))?;
    // The same versions of third-party packages, which are in Cargo's cache.
    fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock"))?;
    let target = root.join("target/dist/crates-build");
    command::build(&project, "cargo", &["run", "--offline"], &[("CARGO_TARGET_DIR", &target)])
}

fn version(description: &Value) -> Result<String> {
    let packages = description["packages"].as_array().into_iter().flatten();
    for package in packages {
        if package["name"] == "layerzero" && package["source"].is_null() {
            return Ok(package["version"].as_str().unwrap_or_default().to_owned());
        }
    }
    bail!("the workspace has no package `layerzero`")
}

/// Writes `SHA256SUMS`, which `sha256sum --check` reads.
fn checksums(dist: &Path) -> Result<()> {
    let mut lines = String::new();
    for path in files::walk(dist)? {
        let relative = files::relative(dist, &path)?;
        let digest = Sha256::digest(fs::read(&path)?);
        let hexadecimal: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        lines += &format!("{hexadecimal}  {relative}\n");
    }
    print!("{lines}");
    fs::write(dist.join("SHA256SUMS"), lines)?;
    Ok(())
}
