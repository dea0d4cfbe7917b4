//! Holds `cargo xtask new-op` to its word: in a copy of the tree, one command starts an operation, another generates it,
//! and it can be called, with no other file touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::codegen::{self, Mode};
use crate::{command, new_op, python};

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

/// Starts, generates, builds and calls an operation in a copy under `target/`.
pub fn check(root: &Path) -> Result<()> {
    forget_generated(root)?;
    let outcome = check_in_copy(root);
    forget_generated(root)?;
    outcome
}

/// Copy and checkout share what they build, and cargo takes crates of the same name and version for the same ones: what was
/// built from the one must not pass for the other. All that is generated is in these crates and in those that use them.
fn forget_generated(root: &Path) -> Result<()> {
    command::run(root, "cargo", &["clean", "--quiet", "--package", "lz-ops", "--package", "lz-macros"])
}

fn check_in_copy(root: &Path) -> Result<()> {
    // The copy keeps its place and shares the target folder, so that what it depends on is not built again.
    let checkout = root.join("target/new-op");
    copy(root, &checkout)?;
    print!("{}", new_op::run(&checkout, NAME)?);
    codegen::run(&checkout, Mode::Write)?;
    codegen::run(&checkout, Mode::Check)?;
    let again = new_op::run(&checkout, NAME).err().context("the same operation was started twice")?;
    ensure!(again.to_string().contains("exists already"), "unexpected refusal: {again}");
    codegen::write(&checkout.join("lz-ops/examples/call.rs"), CALLER)?;
    let arguments = ["run", "--quiet", "--locked", "--package", "lz-ops", "--example", "call"];
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = root.join(target);
    command::run_with(&checkout, "cargo", &arguments, &[("CARGO_TARGET_DIR", &target)])?;
    call_from_python(root, &checkout, &target)
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
    command::run_with(checkout, &interpreter, &["-c", PYTHON_CALLER], &[("PYTHONPATH", &packages)])
}

/// Makes `to` hold exactly the hand-written and generated files of `from`. Files that are right already are not touched:
/// their times say what has to be built again.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let wanted: BTreeSet<PathBuf> = written_files(from, from)?;
    for path in &wanted {
        let data = fs::read(from.join(path)).with_context(|| format!("reading {}", path.display()))?;
        let target = to.join(path);
        if fs::read(&target).ok().as_ref() != Some(&data) {
            if let Some(folder) = target.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&target, data).with_context(|| format!("writing {}", target.display()))?;
        }
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
