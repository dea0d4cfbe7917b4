//! The step `packages`: what is packed is complete. Checks the wheel that `python-wheel` built, a source distribution, and the list of
//! files of every crate, without compiling anything.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::metadata::Member;
use crate::{command, files, metadata, notices, python, python_packages};

/// Runs all checks.
pub fn check(root: &Path) -> Result<()> {
    notices::run(root, true)?;
    let python = python_packages::ensure_venv(root)?;
    let folder = root.join("target/packages");
    files::create_empty(&folder)?;
    let wheel = python::wheel(root)?;
    let sdist = sdist(root, &python, &folder)?;
    audit(root, &python, &wheel)?;
    inspect(root, &python, &wheel, &sdist)?;
    crates(root)
}

/// Writes the source distribution into a folder.
pub fn sdist(root: &Path, python: &Path, folder: &Path) -> Result<PathBuf> {
    let out = folder.to_string_lossy();
    let arguments = ["-m", "maturin", "sdist", "--out", &*out];
    command::run(&root.join("bindings/python"), &python.to_string_lossy(), &arguments)
        .context("writing the source distribution")?;
    files::only(folder, "gz")
}

/// Unpacks a source distribution into an empty folder and returns the folder of its project.
pub fn unpack(root: &Path, python: &Path, sdist: &Path, folder: &Path) -> Result<PathBuf> {
    files::create_empty(folder)?;
    let (file, to) = (sdist.to_string_lossy(), folder.to_string_lossy());
    // With the times of the archive, cargo would reuse what it built from the files of an earlier one.
    let code = "import sys, tarfile; now = lambda member, path: tarfile.data_filter(member, path).replace(mtime=None); \
                tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter=now)";
    command::run(root, &python.to_string_lossy(), &["-c", code, &file, &to])?;
    let project = fs::read_dir(folder)?.next().context("the source distribution is empty")??.path();
    ensure!(project.join("pyproject.toml").is_file(), "{} has no pyproject.toml", project.display());
    Ok(project)
}

/// Checks that the wheel runs on the platforms of its tag.
pub fn audit(root: &Path, python: &Path, wheel: &Path) -> Result<()> {
    python_packages::ensure_packaging_tools(root)?;
    let arguments = ["xtask/src/packages/audit.py", &*wheel.to_string_lossy()];
    command::run(root, &python.to_string_lossy(), &arguments).context("auditing the wheel")
}

/// Checks metadata and content of the wheel and the source distribution.
pub fn inspect(root: &Path, python: &Path, wheel: &Path, sdist: &Path) -> Result<()> {
    let arguments =
        ["xtask/src/packages/inspect_files.py", &*wheel.to_string_lossy(), &*sdist.to_string_lossy()];
    command::run(root, &python.to_string_lossy(), &arguments).context("inspecting the packages")
}

/// Checks that every crate that others may depend on contains the files that its code includes.
fn crates(root: &Path) -> Result<()> {
    let python = python_packages::ensure_venv(root)?;
    let libraries = metadata::libraries(&metadata::read(root)?);
    ensure!(libraries.len() > 15, "the workspace has only {} libraries", libraries.len());
    for Member { name, folder, .. } in &libraries {
        let arguments = ["xtask/src/packages/inspect_crate.py", name, &*folder.to_string_lossy()];
        command::run(root, &python.to_string_lossy(), &arguments)
            .with_context(|| format!("the package of {name} is incomplete"))?;
    }
    pack_crates(root)?;
    println!("{} crates are packed and contain the files that they include", libraries.len());
    Ok(())
}

/// Packs the crates that others may depend on into `target/package`; returns their names.
pub fn pack_crates(root: &Path) -> Result<Vec<String>> {
    let libraries = metadata::libraries(&metadata::read(root)?);
    for library in &libraries {
        let Member { name, missing, .. } = library;
        ensure!(missing.is_empty(), "the manifest of {name} is incomplete: {}", missing.join("; "));
    }
    let names: Vec<String> = libraries.into_iter().map(|library| library.name).collect();
    // Everything is in Cargo's cache already; online, Cargo would ask the registry again for each crate.
    let mut arguments = vec!["package", "--no-verify", "--allow-dirty", "--locked", "--offline"];
    arguments.extend(names.iter().flat_map(|name| ["--package", name]));
    command::run(root, "cargo", &arguments).context("packing the crates")?;
    Ok(names)
}
