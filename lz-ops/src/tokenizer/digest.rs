//! The digest of a definition. It does not depend on whitespace, key order, or truncation and padding settings (which are rejected or
//! ignored, never applied).

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Parts of a `tokenizer.json` that never change a token.
const WITHOUT_EFFECT: [&str; 3] = ["version", "truncation", "padding"];

/// SHA-256 of the canonical text of everything that can change tokens.
pub fn of(definition: &Value) -> [u8; 32] {
    let mut text = Canonical { bytes: Vec::with_capacity(FLUSH + 4096), hash: Sha256::new() };
    match definition {
        Value::Object(parts) => {
            // A null part is equivalent to a missing one.
            let parts = parts
                .iter()
                .filter(|(key, value)| !WITHOUT_EFFECT.contains(&key.as_str()) && !value.is_null());
            text.object(parts.collect());
        }
        other => text.value(other),
    }
    text.hash.update(&text.bytes);
    text.hash.finalize().into()
}

/// Bytes that are buffered before hashing.
const FLUSH: usize = 1 << 16;

/// Hashes the canonical text while it is written, because definitions are large.
struct Canonical {
    bytes: Vec<u8>,
    hash: Sha256,
}

impl Canonical {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Object(entries) => self.object(entries.iter().collect()),
            Value::Array(items) => {
                self.bytes.push(b'[');
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        self.bytes.push(b',');
                    }
                    self.value(item);
                }
                self.bytes.push(b']');
            }
            Value::String(text) => self.string(text),
            scalar => self.bytes.extend_from_slice(scalar.to_string().as_bytes()),
        }
        if self.bytes.len() >= FLUSH {
            self.hash.update(&self.bytes);
            self.bytes.clear();
        }
    }

    fn object(&mut self, mut entries: Vec<(&String, &Value)>) {
        entries.sort_unstable_by_key(|(key, _)| *key);
        self.bytes.push(b'{');
        for (position, (key, value)) in entries.into_iter().enumerate() {
            if position > 0 {
                self.bytes.push(b',');
            }
            self.string(key);
            self.bytes.push(b':');
            self.value(value);
        }
        self.bytes.push(b'}');
    }

    fn string(&mut self, text: &str) {
        // Writing a string to memory cannot fail.
        let written = serde_json::to_writer(&mut self.bytes, text);
        debug_assert!(written.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(json: &str) -> [u8; 32] {
        of(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn digest_depends_only_on_parts_that_can_change_tokens() {
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
