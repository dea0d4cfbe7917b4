//! The commands of the workspace: `cargo xtask <command>`.

mod codegen;
mod onnx;

use anyhow::{Context, Result, bail};
use std::path::Path;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace has no root")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["codegen"] => codegen::run(root, codegen::Mode::Write)?,
        ["codegen", "--check"] => codegen::run(root, codegen::Mode::Check)?,
        ["codegen", "--diff"] => codegen::run(root, codegen::Mode::Diff)?,
        ["onnx-data"] => println!("{}", onnx::ensure_onnx_data(root)?.display()),
        _ => bail!("unknown command: cargo xtask {}", words.join(" ")),
    }
    Ok(())
}
