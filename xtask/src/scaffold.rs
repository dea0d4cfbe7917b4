//! Tests `cargo xtask new-op`: in a copy of the checkout, creates an operation, generates its code and calls it from Rust, C++
//! and Python, with no other file edited.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::codegen::{self, Mode};
use crate::{command, cpp, new_op, python_packages};

/// Folders with build outputs and downloads, which are not copied.
const SKIPPED: [&str; 6] = ["target", ".git", ".venv", "dist", "__pycache__", ".pytest_cache"];

const NAME: &str = "attention.ring.decode";

/// A Rust program that calls the operation.
const CALLER: &str = r#"//! Calls the operation that `cargo xtask new-op` created.

use lz_core::TensorView;
use lz_engine::Engine;
use lz_ops::{AttentionRingDecode, attention_ring_decode, reference_kernels};

fn main() {
    let x = [1.0f32, -2.0, 0.5];
    let args = AttentionRingDecode::new(TensorView::from_slice(&x, &[1, 3]).unwrap()).scale(4.0);
    let engine = Engine::with_kernels(reference_kernels::kernels()).unwrap();
    let result = attention_ring_decode(&engine, args).unwrap();
    assert_eq!(result.output.view().as_slice::<f32>(), Some(&[4.0, -8.0, 2.0][..]));
    println!("attention.ring.decode was called");
}
"#;

/// The same call from Python.
const PYTHON_CALLER: &str = r#"
import numpy as np
import layerzero as lz

x = np.array([[1.0, -2.0, 0.5]], np.float32)
assert lz.ops.attention_ring_decode(x, scale=4.0).tolist() == [[4.0, -8.0, 2.0]]
assert lz.which("attention.ring.decode", x).kernel_id == "reference.attention.ring.decode"
print("attention.ring.decode was called from Python")
"#;

/// The same call in a function compiled by torch as one graph.
const TORCH_CALLER: &str = r#"
import torch
import layerzero as lz

def scaled(x):
    return lz.ops.attention_ring_decode(x, scale=4.0) + 1

x = torch.tensor([[1.0, -2.0, 0.5]])
compiled = torch.compile(scaled, fullgraph=True, dynamic=True, backend="aot_eager")
assert compiled(x).tolist() == scaled(x).tolist() == [[5.0, -7.0, 3.0]]
torch.library.opcheck(torch.ops.layerzero.attention_ring_decode.default, (x,), {"scale": 4.0})
print("attention.ring.decode was called from a compiled graph")
"#;

/// The same call from C++.
const CPP_CALLER: &str = r#"// Calls the operation that `cargo xtask new-op` created.
#include <layerzero/layerzero.hpp>

#include <cstdio>

int main() {
    const lz::Engine engine;
    std::vector<float> x = {1.0F, -2.0F, 0.5F};
    const auto result = lz::ops::attention_ring_decode(engine, {.x = {std::span(x), {1, 3}}, .scale = 4.0F});
    const auto output = result.output.as<float>();
    const bool correct = output[0] == 4.0F && output[1] == -8.0F && output[2] == 2.0F;
    std::puts(correct ? "attention.ring.decode was called from C++" : "attention.ring.decode is wrong from C++");
    return correct ? 0 : 1;
}
"#;

/// Creates, generates, builds and calls an operation in a copy under `target/`.
pub fn check(root: &Path) -> Result<()> {
    // A fixed path and the shared target folder, so that dependencies are not built again.
    let checkout = root.join("target/new-op");
    copy(root, &checkout)?;
    change_versions(&checkout)?;
    turn_off_optimization(&checkout)?;
    print!("{}", new_op::run(&checkout, NAME)?);
    codegen::run(&checkout, Mode::Write)?;
    codegen::run(&checkout, Mode::Check)?;
    let error = new_op::run(&checkout, NAME).err().context("an existing operation was created again")?;
    ensure!(error.to_string().contains("already exists"), "unexpected error: {error}");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = root.join(target);
    call_from_rust_and_cpp(&checkout, &target)?;
    call_from_python(root, &checkout, &target)?;
    // Cargo would reuse artifacts built from the copy for the checkout as long as the copy exists unchanged.
    fs::remove_dir_all(&checkout).with_context(|| format!("removing {}", checkout.display()))
}

/// Changes the versions of the crates with generated code in the copy.
///
/// Cargo identifies a crate in a target folder by name and version, so artifacts of the copy would otherwise be reused for the
/// checkout. `bindings/cpp` is listed because its build script, which compiles the generated bridge, depends on no other crate.
fn change_versions(checkout: &Path) -> Result<()> {
    for package in ["lz-ops", "lz-macros", "bindings/cpp"] {
        let path = checkout.join(package).join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        // Build metadata makes another version of the crate, which the other crates still accept.
        let version = concat!("version = \"", env!("CARGO_PKG_VERSION"), "+new-op\"");
        let changed = text.replacen("version.workspace = true", version, 1);
        ensure!(changed != text, "{} does not contain `version.workspace = true`", path.display());
        fs::write(&path, changed).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Turns off the optimization of all crates that are compiled again because they depend on the operations. The calls below run
/// the reference of the new operation only.
fn turn_off_optimization(checkout: &Path) -> Result<()> {
    let path = checkout.join(".cargo/config.toml");
    let mut text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    text.push_str("\n[profile.dev.package]\n");
    for package in ["lz-cpu", "lz-ops", "lz-tokenize"] {
        text.push_str(&format!("{package}.opt-level = 0\n"));
    }
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// Runs a Rust program, and a C++ program linked with the library of the copy. Both are built from the package `lz-cpp`: its
/// feature set is used for the C++ library anyway, and another package would compile the operations again.
fn call_from_rust_and_cpp(checkout: &Path, target: &Path) -> Result<()> {
    codegen::write(&checkout.join("bindings/cpp/examples/call.rs"), CALLER)?;
    let build = ["build", "--offline", "--package", "lz-cpp", "--lib", "--example", "call"];
    command::build(checkout, "cargo", &build, &[("CARGO_TARGET_DIR", target)])?;
    command::run(checkout, &target.join("debug/examples/call").to_string_lossy(), &[])?;
    let source = checkout.join("call.cpp");
    codegen::write(&source, CPP_CALLER)?;
    let program = target.join("new-op-call");
    cpp::compile_program(checkout, &source, &target.join("debug/liblz_cpp.a"), &program)?;
    command::run(checkout, &program.to_string_lossy(), &[])
}

/// Installs the Python package of the copy into a separate folder, so that the virtual environment keeps the checkout's package.
fn call_from_python(root: &Path, checkout: &Path, target: &Path) -> Result<()> {
    let interpreter = python_packages::ensure_venv(root)?.to_string_lossy().into_owned();
    let wheels = target.join("new-op-wheels");
    let packages = target.join("new-op-packages");
    for folder in [&wheels, &packages] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
        }
    }
    let wheels_text = wheels.to_string_lossy();
    let build = ["-m", "maturin", "build", "--compression-method", "stored", "--out", &wheels_text];
    command::build(&checkout.join("bindings/python"), &interpreter, &build, &[("CARGO_TARGET_DIR", target)])?;
    let packages_text = packages.to_string_lossy();
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--find-links",
        &wheels_text,
        "--target",
        &packages_text,
        "layerzero",
    ];
    command::run(checkout, &interpreter, &install)?;
    let call = |code| {
        command::run_with(checkout, &interpreter, &["-c", code], &[("PYTHONPATH", packages.as_path())])
    };
    call(PYTHON_CALLER)?;
    // Torch is installed only by the steps that need it.
    if python_packages::has_torch(root) { call(TORCH_CALLER) } else { Ok(()) }
}

/// Makes the source files in `to` equal to those in `from`. Modification times are copied too, because cargo rebuilds crates
/// with newer files.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let files: BTreeSet<PathBuf> = source_files(from, from)?;
    for path in &files {
        let source = from.join(path);
        if source.is_symlink() {
            copy_link(&source, &to.join(path))?;
            continue;
        }
        let data = fs::read(&source).with_context(|| format!("reading {}", path.display()))?;
        let target = to.join(path);
        if fs::read(&target).ok().as_ref() != Some(&data) {
            if let Some(folder) = target.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&target, data).with_context(|| format!("writing {}", target.display()))?;
        }
        let modified = fs::metadata(&source)?.modified()?;
        fs::File::options().append(true).open(&target)?.set_modified(modified)?;
    }
    for path in source_files(to, to)?.difference(&files) {
        fs::remove_file(to.join(path)).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// Links point into the copy: all of them are relative.
fn copy_link(source: &Path, target: &Path) -> Result<()> {
    let pointed = fs::read_link(source)?;
    if fs::read_link(target).ok().as_ref() == Some(&pointed) {
        return Ok(());
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    if target.is_symlink() {
        fs::remove_file(target)?;
    }
    std::os::unix::fs::symlink(&pointed, target).with_context(|| format!("linking {}", target.display()))
}

fn source_files(root: &Path, folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_symlink() || !path.is_dir() {
            files.insert(path.strip_prefix(root)?.to_owned());
        } else if !path.file_name().is_some_and(|name| SKIPPED.iter().any(|skipped| name == *skipped)) {
            files.extend(source_files(root, &path)?);
        }
    }
    Ok(files)
}
