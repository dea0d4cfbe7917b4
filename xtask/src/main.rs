//! The commands of the workspace: `cargo xtask <command>`.

mod onnx;

use anyhow::{Context, Result, bail};
use std::path::Path;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace has no root")?;
    match std::env::args().nth(1).as_deref() {
        Some("onnx-data") => println!("{}", onnx::ensure_onnx_data(root)?.display()),
        other => bail!("{} is not a command; there is `onnx-data`", other.unwrap_or("nothing")),
    }
    Ok(())
}
