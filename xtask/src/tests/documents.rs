//! Files that documents quote or link to exist and are quoted exactly.

use std::fs;
use std::path::Path;

use crate::codegen;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn contributing_guide_quotes_its_example_operation_exactly() {
    let guide = read("CONTRIBUTING.md");
    for path in
        ["schemas/ops/activation/relu_squared.yaml", "lz-ops/src/reference/activation/relu_squared.rs"]
    {
        assert!(guide.contains(&read(path)), "CONTRIBUTING.md does not contain the current text of {path}");
    }
}

#[test]
fn links_and_paths_exist() {
    let mut pages = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for path in codegen::walk(&root().join("docs/adr")).unwrap() {
        pages.push(path.strip_prefix(root()).unwrap().display().to_string());
    }
    let mut checked = 0;
    for page in pages {
        let text = read(&page);
        let folder = Path::new(&page).parent().unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            assert!(
                root().join(folder).join(target).exists(),
                "{page} links to {target}, which does not exist"
            );
            checked += 1;
        }
        // Paths of files in backticks are relative to the root.
        let spans = text.split('`').skip(1).step_by(2);
        for span in spans.filter(|span| span.contains('/') && !span.contains(['*', ' ', '{', '\n', ':'])) {
            let file = [".rs", ".yaml", ".md", ".json"].iter().any(|extension| span.ends_with(extension));
            let example = span.contains("linear") || span.starts_with("path");
            if file && !example {
                assert!(root().join(span).exists(), "{page} names {span}, which does not exist");
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "only {checked} links and paths were found");
}

#[test]
fn architecture_lists_every_workspace_member() {
    let architecture = read("ARCHITECTURE.md");
    let manifest = read("Cargo.toml");
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        let (folder, name) = member.split_once('/').unwrap_or((member, ""));
        let has = |name: &str| architecture.contains(&format!("`{name}`"));
        let listed = has(member) || has(&format!("{folder}/")) && (name.is_empty() || has(name));
        assert!(listed, "ARCHITECTURE.md does not list {member}");
    }
}
