//! The Conan package of the C++ library: creates it with the real Conan, in a folder of its own, and runs its test program.

use std::path::Path;

use anyhow::{Context, Result};

use crate::{command, python};

/// Packages the library that was built in this profile, and uses the package.
pub fn check(root: &Path, profile: &str) -> Result<()> {
    let conan = python::ensure_conan(root)?;
    let home = root.join("target/conan");
    let option = format!("layerzero/*:cargo_profile={profile}");
    let recipe = "bindings/cpp";
    let run = |arguments: &[&str]| {
        command::run_with(root, &conan.to_string_lossy(), arguments, &[("CONAN_HOME", &home)])
            .with_context(|| format!("conan {}", arguments.join(" ")))
    };
    run(&["profile", "detect", "--force"])?;
    run(&["build", recipe, "--options", &option])?;
    run(&["export-pkg", recipe, "--options", &option])
}
