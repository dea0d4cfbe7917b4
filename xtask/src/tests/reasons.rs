//! Every reason code is emitted, and `docs/operating.md` lists all of them.

use std::fs;
use std::path::Path;

use lz_codegen::names::camel;
use lz_schema::reasons::Reasons;

use crate::files::walk;

/// Folders with code that emits reasons: sources, descriptors of backends, and schemas.
const ROOTS: &[&str] =
    &["backends", "bindings", "layerzero", "lz-core", "lz-device", "lz-engine", "lz-graph", "lz-ops"];
const MORE_ROOTS: &[&str] = &["lz-perfdb", "lz-primitives", "runtime", "schemas/ops", "schemas/primitives"];

/// Codes for the limits of kernels that none of our descriptors names. A descriptor may name any code; `lz-engine/tests/suite/reasons.rs`
/// tests these.
const FOR_DESCRIPTORS: [&str; 2] = ["PAGE_SIZE_UNSUPPORTED", "SEMANTICS_DIFFER"];

const PAGE: &str = "docs/operating.md";
const BEGIN: &str =
    "<!-- codes: generated from schemas/reasons.yaml by `LZ_BLESS=1 cargo test -p xtask reasons` -->\n";
const END: &str = "<!-- end of codes -->";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn reasons() -> Reasons {
    let text = fs::read_to_string(root().join("schemas/reasons.yaml")).unwrap();
    Reasons::load("schemas/reasons.yaml", &text).unwrap_or_else(|_| panic!("schemas/reasons.yaml is invalid"))
}

/// The sources that may emit reasons, without tests and generated files.
fn sources() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for path in ROOTS.iter().chain(MORE_ROOTS).flat_map(|folder| walk(&root().join(folder)).unwrap()) {
        let relative = path.strip_prefix(root()).unwrap().display().to_string();
        let is_source =
            [".rs", ".py", ".json", ".yaml", ".hpp"].iter().any(|ending| relative.ends_with(ending));
        let is_skipped =
            ["/tests/", "/generated/", "/target/", "/benches/"].iter().any(|part| relative.contains(part));
        if !is_source || is_skipped || relative.ends_with("reason_codes.rs") {
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else { continue };
        // Unit tests are at the end of a file.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        all.push((relative, code));
    }
    all
}

/// Whether the code is the value of an expression in this line of Rust, and not only compared.
fn is_emitted_by(line: &str, name: &str) -> bool {
    let mut rest = line;
    while let Some(at) = rest.find(name) {
        let (before, after) = (rest[..at].trim_end(), &rest[at + name.len()..]);
        let is_word = !after.starts_with(|c: char| c.is_alphanumeric());
        let is_compared = ["==", "!=", "has(", "|"].iter().any(|sign| before.ends_with(sign));
        let is_pattern = ["=>", "|", "if "].iter().any(|sign| after.trim_start().starts_with(sign));
        if is_word && !is_compared && !is_pattern && !before.trim_start().starts_with("//") {
            return true;
        }
        rest = after;
    }
    false
}

/// The first place that emits a code: `file:line`.
fn place(code: &str, sources: &[(String, String)]) -> Option<String> {
    let name = format!("ReasonCode::{}", camel(code));
    let is_word =
        |line: &str| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == code);
    for (path, text) in sources.iter().filter(|(_, text)| text.contains(code) || text.contains(&name)) {
        for (number, line) in text.lines().enumerate() {
            let emits = if path.ends_with(".rs") {
                // The limits of `#[kernel]` name codes as they are spelled in files.
                is_emitted_by(line, &name) || line.contains("=>") && is_word(line)
            } else {
                is_word(line) && !line.trim_start().starts_with(['#', '/', '*'])
            };
            if emits {
                return Some(format!("{path}:{}", number + 1));
            }
        }
    }
    None
}

#[test]
fn every_reason_code_is_emitted() {
    let (sources, reasons) = (sources(), reasons());
    assert!(sources.len() > 300, "only {} sources were searched", sources.len());
    let mut silent = Vec::new();
    for reason in &reasons.codes {
        match place(&reason.code, &sources) {
            Some(place) => println!("{}: {place}", reason.code),
            None => silent.push(reason.code.as_str()),
        }
    }
    assert_eq!(silent, FOR_DESCRIPTORS, "codes that nothing emits: emit them, or remove them");
}

#[test]
fn comparisons_do_not_count_as_emitting() {
    let name = "ReasonCode::DeviceLost";
    assert!(is_emitted_by("let reason = Reason::new(ReasonCode::DeviceLost);", name));
    assert!(is_emitted_by("(wrong, ReasonCode::DeviceLost),", name));
    for line in [
        "if code == ReasonCode::DeviceLost {",
        "ReasonCode::DeviceLost => 1,",
        "error.has(ReasonCode::DeviceLost)",
        "ReasonCode::DeviceLost | ReasonCode::Other => 1,",
        "ReasonCode::DeviceLostForever",
        "// ReasonCode::DeviceLost",
    ] {
        assert!(!is_emitted_by(line, name), "{line}");
    }
}

#[test]
fn the_documentation_lists_every_reason_code() {
    let mut table = "\n| code | category | meaning | what to do |\n|---|---|---|---|\n".to_owned();
    for reason in &reasons().codes {
        let (sentence, help) = (reason.sentence.trim(), reason.help.trim());
        table += &format!("| `{}` | {} | {sentence} | {help} |\n", reason.code, reason.category);
    }
    table += "\n";
    let path = root().join(PAGE);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the table has a beginning");
    let (listed, after) = rest.split_once(END).expect("the table has an end");
    if std::env::var_os("LZ_BLESS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert!(listed == table, "run: LZ_BLESS=1 cargo test -p xtask reasons");
}
