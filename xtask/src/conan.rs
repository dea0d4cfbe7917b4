//! The Conan package of the C++ library: creates it with the real Conan, in a folder of its own, and runs its test program.

use std::env;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{command, cpp, python_packages};

/// Packages the library that was built in this profile, and uses the package.
pub fn check(root: &Path, profile: &str) -> Result<()> {
    let conan = python_packages::ensure_conan(root)?;
    let home = root.join("target/conan");
    // Conan starts CMake by its name.
    let cmake = cpp::ensure_cmake(root)?;
    let folder = Path::new(&cmake).parent().map(Path::to_owned).unwrap_or_default();
    let inherited = env::var_os("PATH").unwrap_or_default();
    let folders = env::join_paths(std::iter::once(folder).chain(env::split_paths(&inherited)))?;
    let option = format!("layerzero/*:cargo_profile={profile}");
    let recipe = "bindings/cpp";
    let run = |arguments: &[&str]| {
        command::run_with(
            root,
            &conan.to_string_lossy(),
            arguments,
            &[("CONAN_HOME", &home), ("PATH", Path::new(&folders))],
        )
        .with_context(|| format!("conan {}", arguments.join(" ")))
    };
    run(&["profile", "detect", "--force"])?;
    run(&["build", recipe, "--options", &option])?;
    let test_folder =
        format!("tools.cmake.cmake_layout:test_folder={}", root.join("target/conan-test").display());
    run(&["export-pkg", recipe, "--options", &option, "--conf", &test_folder])
}
