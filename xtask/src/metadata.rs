//! The packages that a built library contains, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The crates whose libraries and programs are distributed.
pub const DISTRIBUTED: [&str; 4] = ["lz-python", "lz-cpp", "lz-worker", "layerzero"];

/// A third-party package of a distributed library.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its SPDX license expression.
    pub license: String,
    /// The checksum of its source in `Cargo.lock`.
    pub checksum: Option<String>,
    /// The folder of its source.
    pub folder: PathBuf,
}

/// The output of `cargo metadata` for the default features.
pub fn read(root: &Path) -> Result<Value> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform"])
        .arg("x86_64-unknown-linux-gnu")
        .current_dir(root)
        .output()
        .context("could not start cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("parsing the output of cargo metadata")
}

/// A member of the workspace.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The folder of its manifest.
    pub folder: PathBuf,
    /// Whether others may depend on it. Tests, benchmarks and xtask have `publish = false`.
    pub is_library: bool,
    /// What its manifest lacks to be published, one sentence each.
    pub missing: Vec<String>,
}

/// The members of the workspace, sorted by name.
pub fn members(metadata: &Value) -> Vec<Member> {
    let members: BTreeSet<&str> = list(&metadata["workspace_members"]).filter_map(Value::as_str).collect();
    let packages = list(&metadata["packages"]).filter(|package| members.contains(text(&package["id"])));
    let mut found: Vec<Member> = packages
        .filter_map(|package| {
            let folder = Path::new(text(&package["manifest_path"])).parent()?.to_owned();
            let missing = missing(package, &folder);
            let is_library = package["publish"].is_null();
            Some(Member { name: text(&package["name"]).to_owned(), folder, is_library, missing })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The members of the workspace that others may depend on, sorted by name.
pub fn libraries(metadata: &Value) -> Vec<Member> {
    members(metadata).into_iter().filter(|member| member.is_library).collect()
}

/// What a manifest lacks that users of a registry see. `repository` is not required: there is no public address yet.
fn missing(package: &Value, folder: &Path) -> Vec<String> {
    let mut missing = Vec::new();
    for key in ["description", "license", "readme", "rust_version"] {
        if text(&package[key]).is_empty() {
            missing.push(format!("`{}` is missing", key.replace('_', "-")));
        }
    }
    for key in ["keywords", "categories"] {
        // The registry accepts five.
        if !(1..=5).contains(&list(&package[key]).count()) {
            missing.push(format!("`{key}` needs one to five entries"));
        }
    }
    if list(&package["metadata"]["docs"]["rs"]["targets"]).next().is_none() {
        missing.push("`package.metadata.docs.rs` names no `targets`".to_owned());
    }
    let readme = std::fs::read_to_string(folder.join(text(&package["readme"]))).unwrap_or_default();
    if !readme.contains("```") {
        missing.push("its readme has no example".to_owned());
    }
    missing
}

/// The third-party packages that the distributed crates link, sorted.
pub fn third_party(root: &Path) -> Result<Vec<Package>> {
    let metadata = read(root)?;
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).map(|node| (text(&node["id"]), node)).collect();
    let checksums = checksums(root)?;
    let mut waiting: Vec<&str> = packages
        .iter()
        .filter(|(_, package)| package["source"].is_null() && DISTRIBUTED.contains(&text(&package["name"])))
        .map(|(id, _)| *id)
        .collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !reached.insert(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("cargo metadata does not resolve {id}"))?;
        for dependency in list(&node["deps"]) {
            // Build scripts, procedural macros' own dependencies and tests are not part of a library. A procedural macro is a
            // normal dependency, and counts: what it generates is.
            if list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null()) {
                waiting.push(text(&dependency["pkg"]));
            }
        }
    }
    let mut found = Vec::new();
    for package in reached.iter().filter_map(|id| packages.get(id)) {
        if package["source"].is_null() {
            continue;
        }
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let folder = Path::new(text(&package["manifest_path"])).parent();
        found.push(Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: text(&package["license"]).replace('/', " OR "),
            checksum: checksums.get(&(name.to_owned(), version.to_owned())).cloned(),
            folder: folder.context("a manifest has no folder")?.to_owned(),
        });
    }
    found.sort();
    Ok(found)
}

fn checksums(root: &Path) -> Result<BTreeMap<(String, String), String>> {
    let lock: Value = toml::from_str(&std::fs::read_to_string(root.join("Cargo.lock"))?)?;
    Ok(list(&lock["package"])
        .filter_map(|package| {
            let key = (text(&package["name"]).to_owned(), text(&package["version"]).to_owned());
            Some((key, package["checksum"].as_str()?.to_owned()))
        })
        .collect())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lz_test_support::Folder;
    use serde_json::json;

    use super::*;

    #[test]
    fn incomplete_manifests_are_found() {
        let folder = Folder::new();
        folder.write("README.md", "# lz-demo\n\n```rust\nlz_demo::run();\n```\n");
        let complete = json!({
            "description": "A demo.", "license": "Apache-2.0", "readme": "README.md", "rust_version": "1.95",
            "keywords": ["demo"], "categories": ["science"],
            "metadata": {"docs": {"rs": {"targets": ["x86_64-unknown-linux-gnu"]}}},
        });
        assert_eq!(missing(&complete, folder.path()), [""; 0]);
        for key in ["description", "license", "rust_version", "keywords", "categories", "metadata"] {
            let mut package = complete.clone();
            package[key] = Value::Null;
            assert_eq!(missing(&package, folder.path()).len(), 1, "{key}");
        }
        let mut package = complete.clone();
        package["keywords"] = json!(["a", "b", "c", "d", "e", "f"]);
        assert_eq!(missing(&package, folder.path()), ["`keywords` needs one to five entries"]);
        folder.write("README.md", "# lz-demo\n");
        assert_eq!(missing(&complete, folder.path()), ["its readme has no example"]);
    }
}
