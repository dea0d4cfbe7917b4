//! `cargo xtask notices`: writes `THIRD_PARTY_NOTICES.md`, the licenses of the third-party packages that the distributed libraries
//! contain, from `Cargo.lock` and the sources of the packages.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::metadata::{self, Package};

const FILE: &str = "THIRD_PARTY_NOTICES.md";
/// Used for every package that offers it, because its text has no copyright line that differs by package.
const SHARED: &str = "Apache-2.0";
/// Beginnings of the names of files with license texts.
const LICENSE_FILES: [&str; 4] = ["licen", "copying", "unlicense", "copyright"];

/// Writes the notices, or fails if they are stale.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let packages = metadata::third_party(root)?;
    let text = render(&packages, &fs::read_to_string(root.join("LICENSE"))?)?;
    let path = root.join(FILE);
    if check {
        let found = fs::read_to_string(&path).unwrap_or_default();
        ensure!(found == text, "{FILE} does not match Cargo.lock; to write it, run `cargo xtask notices`");
    } else {
        fs::write(&path, &text).with_context(|| format!("writing {FILE}"))?;
    }
    println!("{FILE}: {} packages, {} KB", packages.len(), text.len() / 1024);
    Ok(())
}

fn render(packages: &[Package], apache: &str) -> Result<String> {
    let mut text = "# Third-party notices\n\nThe distributed libraries contain code of the packages below. This file is written by \
                    `cargo xtask notices`.\n\n| package | version | license |\n|---|---|---|\n"
        .to_owned();
    for package in packages {
        writeln!(text, "| {} | {} | {} |", package.name, package.version, package.license)?;
    }
    // Texts that several packages share are printed once, under all their names.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        let name = format!("{} {}", package.name, package.version);
        let under_apache = alternatives(&package.license).contains(&SHARED);
        for path in texts_of(package, under_apache)? {
            let read = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let lines: Vec<String> =
                String::from_utf8_lossy(&read).lines().map(|line| line.trim_end().to_owned()).collect();
            let content = lines.join("\n").trim().to_owned();
            let names = texts.entry(content).or_default();
            if !names.contains(&name) {
                names.push(name.clone());
            }
        }
    }
    let apache_names =
        packages.iter().filter(|package| alternatives(&package.license).contains(&SHARED)).count();
    writeln!(
        text,
        "\n{apache_names} packages that offer the Apache License 2.0 are used under it; its text comes first. The texts of the \
         others, and all notices, follow.\n\n## Apache License 2.0\n\n```text\n{}\n```",
        apache.trim_end().replace("```", "'''")
    )?;
    let mut sorted: Vec<(&Vec<String>, &String)> = texts.iter().map(|(text, names)| (names, text)).collect();
    sorted.sort();
    for (names, content) in sorted {
        writeln!(text, "\n## {}\n\n```text\n{}\n```", names.join(", "), content.replace("```", "'''"))?;
    }
    Ok(text)
}

/// The alternatives of a license expression; an expression with `AND` is one alternative.
fn alternatives(expression: &str) -> Vec<&str> {
    if expression.contains(" AND ") {
        return vec![expression];
    }
    let inner = expression.trim_matches(['(', ')']);
    inner.split(" OR ").map(str::trim).collect()
}

/// The files with license texts of a package; only notices if it is used under a license that is printed once.
fn texts_of(package: &Package, under_apache: bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(&package.folder).with_context(|| {
        format!("the source of {} is missing: run `cargo fetch --locked`", package.folder.display())
    })?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let is_text = path.is_file() && !name.ends_with(".rs");
        let is_license = LICENSE_FILES.iter().any(|prefix| name.starts_with(prefix));
        if is_text && (name.starts_with("notice") || !under_apache && is_license) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use lz_test_support::Folder;

    use super::*;

    #[test]
    fn alternatives_are_split_only_without_a_conjunction() {
        assert_eq!(alternatives("MIT OR Apache-2.0"), ["MIT", "Apache-2.0"]);
        assert_eq!(alternatives("(MIT OR Apache-2.0)"), ["MIT", "Apache-2.0"]);
        assert_eq!(alternatives("Apache-2.0 AND MIT"), ["Apache-2.0 AND MIT"]);
        assert_eq!(alternatives("MIT"), ["MIT"]);
    }

    #[test]
    fn texts_that_several_packages_share_are_printed_once() {
        let temporary = Folder::new();
        let package = |name: &str, license: &str, files: &[(&str, &str)]| {
            let folder = temporary.file(name);
            fs::create_dir(&folder).unwrap();
            for (file, text) in files {
                fs::write(folder.join(file), text).unwrap();
            }
            Package {
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                license: license.to_owned(),
                checksum: None,
                folder,
            }
        };
        let packages = [
            package("a", "MIT", &[("LICENSE", "shared text\n")]),
            package("b", "MIT", &[("LICENSE-MIT", "shared text")]),
            package("c", "MIT OR Apache-2.0", &[("LICENSE-MIT", "not printed"), ("NOTICE", "notice of c")]),
        ];
        let text = render(&packages, "apache text").unwrap();
        assert!(text.contains("## a 1.0.0, b 1.0.0\n\n```text\nshared text\n```"), "{text}");
        assert!(
            text.contains("## c 1.0.0\n\n```text\nnotice of c\n```") && !text.contains("not printed"),
            "{text}"
        );
        assert!(text.contains("1 packages that offer") && text.contains("apache text"), "{text}");
    }
}
