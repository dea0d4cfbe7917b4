//! Links between hand-written pages lead to existing files and headings, and the glossary names existing paths.

use std::fs;
use std::path::{Path, PathBuf};

use crate::codegen;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Markdown files of the root, `docs` and `results`. Generated pages (`docs/ops`, `docs/cpp`) are not checked.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/adr", "docs/how-to", "results"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        found.extend(entries.map(|entry| entry.unwrap().path()));
    }
    found.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    found.sort();
    found
}

/// A page without code blocks and code spans.
fn prose(text: &str) -> String {
    let outside_blocks: String = text.split("```").step_by(2).collect();
    outside_blocks.split('`').step_by(2).collect()
}

/// The anchors of a page's headings, as GitHub forms them.
fn anchors(text: &str) -> Vec<String> {
    let outside_blocks: String = text.split("```").step_by(2).collect();
    let headings = outside_blocks.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
        })
        .collect()
}

#[test]
fn links_lead_to_existing_files_and_headings() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for page in pages() {
        let text = read(&page);
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        for link in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let has_anchor =
                || anchor.is_empty() || anchors(&read(&target)).iter().any(|known| known == anchor);
            if !target.exists() || !has_anchor() {
                broken.push(format!("{name}: {link}"));
            }
            checked += 1;
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    assert!(checked > 50, "only {checked} links were found");
}

#[test]
fn every_page_is_in_the_index() {
    let index = read(&root().join("docs/README.md"));
    for page in pages().iter().filter(|page| page.parent() == Some(&root().join("docs"))) {
        let name = page.file_name().unwrap().to_string_lossy();
        assert!(name == "README.md" || index.contains(&format!("({name})")), "docs/README.md lacks {name}");
    }
    let records = read(&root().join("docs/adr/README.md"));
    for page in codegen::walk(&root().join("docs/adr")).unwrap() {
        let name = page.file_name().unwrap().to_string_lossy();
        assert!(
            name == "README.md" || records.contains(&format!("({name})")),
            "docs/adr/README.md lacks {name}"
        );
    }
}

/// `lz docs` prints the pages of the wheel, which refer to each other.
#[test]
fn the_python_package_has_every_page() {
    let packaged = root().join("bindings/python/python/layerzero/_docs");
    let folders = ["docs", "docs/how-to"].map(|folder| root().join(folder));
    let of_users =
        pages().into_iter().filter(|page| folders.iter().any(|folder| page.parent() == Some(folder)));
    for page in of_users.filter(|page| !page.ends_with("README.md")) {
        let link = packaged.join(page.file_name().unwrap());
        let target = link.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", link.display()));
        assert_eq!(target, page.canonicalize().unwrap());
    }
}

#[test]
fn glossary_names_existing_paths() {
    let glossary = read(&root().join("docs/glossary.md"));
    let locations = glossary.lines().filter_map(|line| line.strip_suffix('|')?.rsplit('|').next());
    let spans =
        locations.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(|span| span.contains('/'));
    let missing: Vec<&str> = spans.filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "docs/glossary.md names paths that do not exist:\n{}", missing.join("\n"));
}
