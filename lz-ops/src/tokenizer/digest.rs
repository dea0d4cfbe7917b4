//! The digest of a definition: equal for files that give the same tokens by construction, whatever their spacing,
//! their order of keys, and their settings of truncation and padding (which are refused or ignored, never obeyed).

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Parts of a `tokenizer.json` that never change a token.
const WITHOUT_EFFECT: [&str; 3] = ["version", "truncation", "padding"];

/// SHA-256 of the canonical text of everything that can change tokens.
pub fn of(definition: &Value) -> [u8; 32] {
    let mut text = String::new();
    match definition {
        Value::Object(parts) => {
            // A part that is null is as good as absent.
            let parts = parts
                .iter()
                .filter(|(key, value)| !WITHOUT_EFFECT.contains(&key.as_str()) && !value.is_null());
            write_object(parts.collect(), &mut text);
        }
        other => write(other, &mut text),
    }
    Sha256::digest(text.as_bytes()).into()
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(entries) => write_object(entries.iter().collect(), text),
        Value::Array(items) => {
            text.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

fn write_object(mut entries: Vec<(&String, &Value)>, text: &mut String) {
    entries.sort_by_key(|(key, _)| *key);
    text.push('{');
    for (position, (key, value)) in entries.into_iter().enumerate() {
        if position > 0 {
            text.push(',');
        }
        text.push_str(&Value::from(key.as_str()).to_string());
        text.push(':');
        write(value, text);
    }
    text.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(json: &str) -> [u8; 32] {
        of(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn only_what_can_change_tokens_counts() {
        let base = digest(r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}"#);
        let same = r#"{"version":"1.0","truncation":{"max_length":5},"padding":null,"normalizer":null,
                       "model":{"vocab":{"b":1,"a":0},"merges":["a b"],"type":"BPE"}}"#;
        assert_eq!(base, digest(same));
        for other in [
            r#"{"model": {"type": "BPE", "vocab": {"a": 1, "b": 0}, "merges": ["a b"]}}"#,
            r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["b a"]}}"#,
            r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}, "added_tokens": []}"#,
            r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b\":1,\"c": 1}, "merges": ["a b"]}}"#,
        ] {
            assert_ne!(base, digest(other), "{other}");
        }
    }
}
