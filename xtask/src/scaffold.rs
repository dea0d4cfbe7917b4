//! Holds `cargo xtask new-op` to its word: in a copy of the tree, one command starts an operation, another generates it,
//! and it can be called, with no other file touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::codegen::{self, Mode};
use crate::{command, cpp, new_op, python};

/// Folders that hold what is built or fetched, never what is written.
const SKIPPED: [&str; 6] = ["target", ".git", ".venv", "dist", "__pycache__", ".pytest_cache"];

const NAME: &str = "attention.linear.decode";

/// A caller, as somebody outside would write it.
const CALLER: &str = r#"//! Calls the operation that the scaffolder started.

use lz_core::TensorView;
use lz_ops::{AttentionLinearDecode, attention_linear_decode, reference_engine};

fn main() {
    let x = [1.0f32, -2.0, 0.5];
    let args = AttentionLinearDecode::new(TensorView::from_slice(&x, &[1, 3]).unwrap()).scale(4.0);
    let result = attention_linear_decode(&reference_engine(), args).unwrap();
    assert_eq!(result.output.view().as_slice::<f32>(), Some(&[4.0, -8.0, 2.0][..]));
    println!("attention.linear.decode was called");
}
"#;

/// The same from Python.
const PYTHON_CALLER: &str = r#"
import numpy as np
import layerzero as lz

x = np.array([[1.0, -2.0, 0.5]], np.float32)
assert lz.ops.attention_linear_decode(x, scale=4.0).tolist() == [[4.0, -8.0, 2.0]]
assert lz.which("attention.linear.decode", x).kernel_id == "reference.attention.linear.decode"
print("attention.linear.decode was called from Python")
"#;

/// The same compiled by torch, as one graph.
const TORCH_CALLER: &str = r#"
import torch
import layerzero as lz

def scaled(x):
    return lz.ops.attention_linear_decode(x, scale=4.0) + 1

x = torch.tensor([[1.0, -2.0, 0.5]])
compiled = torch.compile(scaled, fullgraph=True, dynamic=True, backend="aot_eager")
assert compiled(x).tolist() == scaled(x).tolist() == [[5.0, -7.0, 3.0]]
torch.library.opcheck(torch.ops.layerzero.attention_linear_decode.default, (x,), {"scale": 4.0})
print("attention.linear.decode was called from a compiled graph")
"#;

/// The same from C++.
const CPP_CALLER: &str = r#"// Calls the operation that the scaffolder started.
#include <layerzero/layerzero.hpp>

#include <cstdio>

int main() {
    const lz::Engine engine;
    std::vector<float> x = {1.0F, -2.0F, 0.5F};
    const auto result = lz::ops::attention_linear_decode(engine, {.x = {std::span(x), {1, 3}}, .scale = 4.0F});
    const auto found = result.output.as<float>();
    const bool right = found[0] == 4.0F && found[1] == -8.0F && found[2] == 2.0F;
    std::puts(right ? "attention.linear.decode was called from C++" : "attention.linear.decode is wrong from C++");
    return right ? 0 : 1;
}
"#;

/// Starts, generates, builds and calls an operation in a copy under `target/`.
pub fn check(root: &Path) -> Result<()> {
    // The copy keeps its place and shares the target folder, so that what it depends on is not built again.
    let checkout = root.join("target/new-op");
    copy(root, &checkout)?;
    rename(&checkout)?;
    print!("{}", new_op::run(&checkout, NAME)?);
    codegen::run(&checkout, Mode::Write)?;
    codegen::run(&checkout, Mode::Check)?;
    let again = new_op::run(&checkout, NAME).err().context("the same operation was started twice")?;
    ensure!(again.to_string().contains("exists already"), "unexpected refusal: {again}");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = root.join(target);
    call_from_rust_and_cpp(&checkout, &target)?;
    call_from_python(root, &checkout, &target)?;
    // What was built first from the copy would go on passing for the checkout's own, as long as the copy does not change.
    fs::remove_dir_all(&checkout).with_context(|| format!("removing {}", checkout.display()))
}

/// Cargo takes crates of the same name and version in the same target folder for the same ones: what is built from the copy
/// must not pass for the checkout's own. All that is generated is in these crates and in those that use them; what C++'s
/// compiler makes of the bridge is kept by a build script, which uses none of them.
fn rename(checkout: &Path) -> Result<()> {
    for package in ["lz-ops", "lz-macros", "bindings/cpp"] {
        let path = checkout.join(package).join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let own = text.replacen("version.workspace = true", "version = \"0.0.0-new-op\"", 1);
        ensure!(own != text, "{package} has a version of its own");
        fs::write(&path, own).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Runs a program in Rust, and one in C++ that is linked with the library of the copy. Both are built with the package of C++,
/// which has all that they need: every other choice of packages would compile the operations once more.
fn call_from_rust_and_cpp(checkout: &Path, target: &Path) -> Result<()> {
    codegen::write(&checkout.join("bindings/cpp/examples/call.rs"), CALLER)?;
    let build = ["build", "--quiet", "--offline", "--package", "lz-cpp", "--lib", "--example", "call"];
    command::run_with(checkout, "cargo", &build, &[("CARGO_TARGET_DIR", target)])?;
    command::run(checkout, &target.join("debug/examples/call").to_string_lossy(), &[])?;
    let source = checkout.join("call.cpp");
    codegen::write(&source, CPP_CALLER)?;
    let program = target.join("new-op-call");
    cpp::compile_program(checkout, &source, &target.join("debug/liblz_cpp.a"), &program)?;
    command::run(checkout, &program.to_string_lossy(), &[])
}

/// Builds the package of the copy into a folder of its own, beside the one that the virtual environment has.
fn call_from_python(root: &Path, checkout: &Path, target: &Path) -> Result<()> {
    let interpreter = python::ensure_venv(root)?.to_string_lossy().into_owned();
    let wheels = target.join("new-op-wheels");
    let packages = target.join("new-op-packages");
    for folder in [&wheels, &packages] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
        }
    }
    let wheels_text = wheels.to_string_lossy();
    let build = ["-m", "maturin", "build", "--quiet", "--out", &wheels_text];
    command::run_with(
        &checkout.join("bindings/python"),
        &interpreter,
        &build,
        &[("CARGO_TARGET_DIR", target)],
    )?;
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
    // Torch is there where its own tests ran before.
    if python::has_torch(root) { call(TORCH_CALLER) } else { Ok(()) }
}

/// Makes `to` hold exactly the hand-written and generated files of `from`, times included: they say what has to be built
/// again, and what is the same in both was built already.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let wanted: BTreeSet<PathBuf> = written_files(from, from)?;
    for path in &wanted {
        let source = from.join(path);
        let data = fs::read(&source).with_context(|| format!("reading {}", path.display()))?;
        let target = to.join(path);
        if fs::read(&target).ok().as_ref() != Some(&data) {
            if let Some(folder) = target.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&target, data).with_context(|| format!("writing {}", target.display()))?;
        }
        let changed = fs::metadata(&source)?.modified()?;
        fs::File::options().append(true).open(&target)?.set_modified(changed)?;
    }
    for path in written_files(to, to)?.difference(&wanted) {
        fs::remove_file(to.join(path)).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn written_files(root: &Path, folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if !path.is_dir() {
            found.insert(path.strip_prefix(root)?.to_owned());
        } else if !path.file_name().is_some_and(|name| SKIPPED.iter().any(|skipped| name == *skipped)) {
            found.extend(written_files(root, &path)?);
        }
    }
    Ok(found)
}
