//! YAML texts for generated schemas: names, quoted texts and blocks that come back letter by letter.

use lz_schema::source::{Source, Value, parse};

/// A text in double quotes.
pub(super) fn quoted(text: &str) -> String {
    use std::fmt::Write;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        let code = u32::from(character);
        // Writing to a String cannot fail.
        let _ = match character {
            '"' => write!(quoted, "\\\""),
            '\\' => write!(quoted, "\\\\"),
            '\n' => write!(quoted, "\\n"),
            '\t' => write!(quoted, "\\t"),
            '\r' => write!(quoted, "\\r"),
            _ if !printable(character) && code < 0x100 => write!(quoted, "\\x{code:02x}"),
            _ if !printable(character) && code < 0x1_0000 => write!(quoted, "\\u{code:04x}"),
            _ if !printable(character) => write!(quoted, "\\U{code:08x}"),
            other => write!(quoted, "{other}"),
        };
    }
    quoted.push('"');
    quoted
}

/// Whether YAML lets a character stand in a text as it is.
fn printable(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// A key or short text: bare if it is a plain word, quoted otherwise.
pub(super) fn word(text: &str) -> String {
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    // Words that YAML readers take for something else, and YAML 1.1's bools.
    let special = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    if plain && !special.contains(&text.to_ascii_lowercase().as_str()) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

/// A key whose text spans lines, as a block if that keeps it letter by letter, and in quotes otherwise. Ends in a line end.
pub(super) fn text(indent: usize, key: &str, text: &str) -> String {
    let margin = " ".repeat(indent);
    if text.contains('\n')
        && let Some(block) = block(indent, key, text)
        && survives(&block, indent, text)
    {
        return block;
    }
    format!("{margin}{key}: {}\n", quoted(text))
}

fn block(indent: usize, key: &str, text: &str) -> Option<String> {
    if !text.chars().all(|character| printable(character) || matches!(character, '\n' | '\t')) {
        return None;
    }
    let body = text.trim_end_matches('\n');
    let chomping = match text.len() - body.len() {
        0 => "-",
        1 => "",
        _ => "+",
    };
    let (margin, inner) = (" ".repeat(indent), " ".repeat(indent + 2));
    let mut block = format!("{margin}{key}: |2{chomping}\n");
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        if !line.is_empty() {
            block.push_str(&inner);
            block.push_str(line);
        }
        block.push('\n');
    }
    Some(block)
}

/// Whether the YAML reader gives the text back, with another key behind it.
fn survives(block: &str, indent: usize, text: &str) -> bool {
    let parents: String = (0..indent / 2).map(|depth| format!("{}p:\n", "  ".repeat(depth))).collect();
    let file = format!("{parents}{block}{}after: 1\n", " ".repeat(indent));
    let (Some(mut node), issues) = parse(&Source::new("", &file)) else { return false };
    for _ in 0..indent / 2 {
        let Value::Mapping(entries) = node.value else { return false };
        let Some((_, inner)) = entries.into_iter().next() else { return false };
        node = inner;
    }
    let Value::Mapping(entries) = &node.value else { return false };
    issues.is_empty()
        && matches!(entries.as_slice(), [(_, first), _] if matches!(&first.value, Value::Scalar(scalar) if scalar.text == text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_back(yaml: &str) -> Option<String> {
        let (node, issues) = parse(&Source::new("", &format!("p:\n{yaml}")));
        assert!(issues.is_empty(), "{issues:?}\n{yaml}");
        let Value::Mapping(outer) = node?.value else { return None };
        let Value::Mapping(inner) = &outer.first()?.1.value else { return None };
        match &inner.first()?.1.value {
            Value::Scalar(scalar) => Some(scalar.text.clone()),
            _ => None,
        }
    }

    #[test]
    fn python_becomes_a_readable_block() {
        let python = "import torch\n\ndef run(x):\n    return x\n";
        let yaml = text(2, "reference", python);
        assert_eq!(yaml, "  reference: |2\n    import torch\n\n    def run(x):\n        return x\n");
        assert_eq!(read_back(&yaml).as_deref(), Some(python));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(content in "[ \\ta-z:#|>'\"\\\\{}&*!%@`\\-\\n\\r\u{0}\u{7f}\u{85}\u{a0}é\u{2028}\u{feff}\u{1f600}]{0,24}") {
            prop_assert_eq!(read_back(&text(2, "key", &content)), Some(content));
        }

        #[test]
        fn any_characters_come_back(content in proptest::collection::vec(any::<char>(), 0..12)) {
            let content: String = content.into_iter().collect();
            prop_assert_eq!(read_back(&text(2, "key", &content)), Some(content));
        }
    }
}
