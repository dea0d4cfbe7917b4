//! The vcpkg port of the C++ library: installs it with the real vcpkg, where that is installed, and runs a program that uses it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{command, cpp};

/// The folder of the port, an argument of `--overlay-ports`.
const PORTS: &str = "bindings/cpp/vcpkg";

/// Installs the port into `target/vcpkg` and uses it. Without vcpkg nothing is checked, which is printed.
pub fn check(root: &Path) -> Result<()> {
    if !Command::new("vcpkg").arg("version").output().is_ok_and(|output| output.status.success()) {
        println!("vcpkg is not installed: its port ({PORTS}) is not checked");
        return Ok(());
    }
    let folder = root.join("target/vcpkg");
    // vcpkg does not build a port again that is installed, even if the checkout changed.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let text = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let arguments = [
        "install".to_owned(),
        "layerzero".to_owned(),
        "--classic".to_owned(),
        format!("--overlay-ports={PORTS}"),
        format!("--x-install-root={}", text("installed")),
        format!("--x-buildtrees-root={}", text("buildtrees")),
        format!("--x-packages-root={}", text("packages")),
        "--binarysource=clear".to_owned(),
        "--recurse".to_owned(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let target = root.join("target");
    command::run_with(root, "vcpkg", &arguments, &[("CARGO_TARGET_DIR", &target)])
        .context("installing the vcpkg port")?;
    let triplet = format!("{}/x64-linux", text("installed"));
    let cmake = cpp::ensure_cmake(root)?;
    let (build, prefix) = (text("program"), format!("-DCMAKE_PREFIX_PATH={triplet}"));
    let source = root.join("bindings/cpp/test_package").to_string_lossy().into_owned();
    command::run(root, &cmake, &["-S", &source, "-B", &build, &prefix])?;
    command::run(root, &cmake, &["--build", &build])?;
    command::run(root, &format!("{build}/norm"), &[]).context("running a program that uses the vcpkg port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_has_the_version_of_the_workspace() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let port = fs::read_to_string(root.join(PORTS).join("layerzero/vcpkg.json")).unwrap();
        let port: serde_json::Value = serde_json::from_str(&port).unwrap();
        assert_eq!(port["version-semver"], env!("CARGO_PKG_VERSION"));
    }
}
