//! Pages name kernels that exist: a copied lock or preference must not name a kernel that no engine has.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use lz_engine::policy::Pattern;

/// The first words of kernel ids; other words with dots are operations, settings, modules and files.
const FIRST_WORDS: &[&str] =
    &["apex", "cpu", "flash_attn", "flashinfer", "hf_kernels", "liger", "reference", "triton", "xformers"];

/// Lists modules of other packages.
const SKIPPED_PAGE: &str = "private-interfaces.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The kernels of the engine and of all descriptors of the Python package.
fn kernels() -> BTreeSet<String> {
    let mut ids: BTreeSet<String> =
        layerzero::kernels().into_iter().map(|entry| entry.spec.id.to_string()).collect();
    for entry in fs::read_dir(root().join("bindings/python/python/layerzero/backends")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let text = fs::read_to_string(path).unwrap();
            let values = text.split("\"kernel_id\": \"").skip(1);
            ids.extend(values.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    ids
}

/// Hand-written pages for users.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), root().join("bindings/python/README.md")];
    for folder in ["docs", "docs/how-to"] {
        found.extend(fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    found.retain(|path| {
        path.extension().is_some_and(|ending| ending == "md") && !path.ends_with(SKIPPED_PAGE)
    });
    found
}

#[test]
fn pages_name_existing_kernels() {
    let kernels = kernels();
    let (mut checked, mut unknown) = (0, Vec::new());
    for page in pages() {
        for (number, line) in fs::read_to_string(&page).unwrap().lines().enumerate() {
            for word in line.split(|letter: char| !(letter.is_ascii_alphanumeric() || "._*".contains(letter)))
            {
                let word = word.trim_end_matches('.');
                let first = word.split_once('.').map(|(first, _)| first);
                if !first.is_some_and(|first| FIRST_WORDS.contains(&first)) {
                    continue;
                }
                let pattern = Pattern::new(word);
                if !kernels.iter().any(|id| pattern.matches(id)) {
                    unknown.push(format!("{}:{}: {word}", page.display(), number + 1));
                }
                checked += 1;
            }
        }
    }
    assert!(unknown.is_empty(), "pages name kernels that do not exist:\n{}", unknown.join("\n"));
    assert!(checked > 10, "only {checked} names were found");
}
