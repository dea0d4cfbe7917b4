//! Malformed input never causes a panic in parsing or validation, and every report can be rendered.

use std::fs;
use std::path::Path;

use lz_schema::{Reasons, SchemaSet, load_one};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn everything() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui/pass/everything.yaml");
    fs::read_to_string(path).expect("the fixture exists")
}

/// Loads the text with every entry point and renders the reports.
fn read(text: &str) {
    let reasons = Reasons::default();
    if let Err(report) = load_one("hostile.yaml", text, &reasons) {
        assert!(!report.diagnostics.is_empty());
        assert!(report.render().contains("error"));
    }
    if let Err(report) = SchemaSet::load([("schemas/ops/hostile.yaml", text), ("other.yaml", text)], &reasons)
    {
        assert!(report.render().contains("nothing was generated"));
    }
    if let Err(report) = Reasons::load("reasons.yaml", text) {
        assert!(report.render().contains("error"));
    }
}

/// Tokens of YAML and of the schema language, so that mutations pass the first parsing steps.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    ", ",
    "-",
    "- ",
    "#",
    "&a ",
    "*a",
    "!t ",
    "|",
    ">",
    "'",
    "\"",
    "\n",
    "\n  ",
    "\t",
    "...",
    "---\n",
    "(",
    ")",
    "by: layout",
    "9223372036854775807",
    "-1",
    "1e999",
    "nan",
    "~",
    "given(mask)",
    "T",
    "é",
    "\u{0}",
    "\u{2028}",
    "\r\n",
    "\u{feff}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bytes_may_be_anything(edits in vec((any::<Index>(), any::<u8>()), 1..8)) {
        let mut bytes = everything().into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn pieces_may_stand_anywhere(edits in vec((any::<Index>(), 0..PIECES.len(), 0usize..12), 1..6)) {
        let mut text = everything();
        for (at, piece, cut) in edits {
            let starts: Vec<usize> = text.char_indices().map(|(start, _)| start).collect();
            let first = at.index(starts.len());
            let end = starts.get(first + cut).copied().unwrap_or(text.len());
            text.replace_range(starts[first]..end, PIECES[piece]);
        }
        read(&text);
    }

    #[test]
    fn lines_may_be_lost_or_doubled(edits in vec((any::<Index>(), any::<Index>(), any::<bool>()), 1..5)) {
        let text = everything();
        let mut lines: Vec<&str> = text.lines().collect();
        for (from, to, keep) in edits {
            let from = from.index(lines.len());
            let line = if keep { lines[from] } else { lines.remove(from) };
            lines.insert(to.index(lines.len() + 1), line);
        }
        read(&lines.join("\n"));
    }
}

#[test]
fn deep_and_wide_texts_are_rejected_without_a_panic() {
    read(&"[".repeat(100_000));
    read(&"{a: ".repeat(100_000));
    read(&format!("axes: {{ {} }}", (0..500).map(|at| format!("a{at}: 1")).collect::<Vec<_>>().join(", ")));
    read("");
    read("\u{feff}");
    read("just a text");
    read("? [a, b]\n: c");
}
