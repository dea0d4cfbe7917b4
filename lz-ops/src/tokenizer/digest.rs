//! The digest of a definition. It does not depend on whitespace, key order, or truncation and padding settings (which are rejected or
//! ignored, never applied).

use std::borrow::Cow;
use std::io::Write as _;

use sha2::{Digest, Sha256};

use super::json::Json;

/// Parts of a `tokenizer.json` that never change a token.
const WITHOUT_EFFECT: [&str; 3] = ["version", "truncation", "padding"];

/// SHA-256 of the canonical text of everything that can change tokens.
pub fn of(definition: &Json<'_>) -> [u8; 32] {
    let mut text = Canonical { bytes: Vec::with_capacity(FLUSH + 4096), hash: Sha256::new() };
    match definition {
        Json::Object(parts) => {
            let mut parts = in_order(parts);
            // A null part is equivalent to a missing one.
            parts.retain(|(_, key, value)| !WITHOUT_EFFECT.contains(key) && !value.is_null());
            text.object(&parts);
        }
        other => text.value(other),
    }
    text.hash.update(&text.bytes);
    text.hash.finalize().into()
}

/// Bytes that are buffered before hashing.
const FLUSH: usize = 1 << 16;

/// An entry of an object: the first bytes of its key, which decide most comparisons, its key and its value.
type Entry<'j, 'a> = (u64, &'j str, &'j Json<'a>);

/// The entries of an object by key, without those that a later entry of the same key replaces.
fn in_order<'j, 'a>(entries: &'j [(Cow<'a, str>, Json<'a>)]) -> Vec<Entry<'j, 'a>> {
    let entry = |(key, value): &'j (Cow<'a, str>, Json<'a>)| {
        let mut first = [0; 8];
        let bytes = &key.as_bytes()[..key.len().min(8)];
        first[..bytes.len()].copy_from_slice(bytes);
        (u64::from_be_bytes(first), key.as_ref(), value)
    };
    let mut entries: Vec<Entry<'j, 'a>> = entries.iter().map(entry).collect();
    // Stable, so that the last of equal keys stays the last.
    entries.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp(b.1)));
    let is_replaced = |at: usize| entries.get(at + 1).is_some_and(|next| next.1 == entries[at].1);
    if (0..entries.len()).any(is_replaced) {
        let kept = (0..entries.len()).filter(|at| !is_replaced(*at)).map(|at| entries[at]).collect();
        return kept;
    }
    entries
}

/// Hashes the canonical text while it is written, because definitions are large.
struct Canonical {
    bytes: Vec<u8>,
    hash: Sha256,
}

impl Canonical {
    fn value(&mut self, value: &Json<'_>) {
        match value {
            Json::Object(entries) => self.object(&in_order(entries)),
            Json::Array(items) => {
                self.bytes.push(b'[');
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        self.bytes.push(b',');
                    }
                    self.value(item);
                }
                self.bytes.push(b']');
            }
            Json::String(text) => self.string(text),
            Json::Null => self.bytes.extend_from_slice(b"null"),
            Json::Bool(true) => self.bytes.extend_from_slice(b"true"),
            Json::Bool(false) => self.bytes.extend_from_slice(b"false"),
            Json::Number(number) => {
                // Writing to memory cannot fail.
                let written = write!(self.bytes, "{number}");
                debug_assert!(written.is_ok());
            }
        }
        if self.bytes.len() >= FLUSH {
            self.hash.update(&self.bytes);
            self.bytes.clear();
        }
    }

    fn object(&mut self, entries: &[Entry<'_, '_>]) {
        self.bytes.push(b'{');
        for (position, (_, key, value)) in entries.iter().enumerate() {
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
        if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
            self.bytes.push(b'"');
            self.bytes.extend_from_slice(text.as_bytes());
            self.bytes.push(b'"');
            return;
        }
        // Writing a string to memory cannot fail.
        let written = serde_json::to_writer(&mut self.bytes, text);
        debug_assert!(written.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(json: &str) -> [u8; 32] {
        of(&Json::parse(json.as_bytes()).unwrap())
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

    #[test]
    fn digest_is_that_of_the_canonical_text() {
        let text = r#"{"z": [1, -2, 0.5, 1e30, true, null], "a\"b": {"prefix_of_8_b": 1, "prefix_of_8_a": 2, "prefix_o": 3, "": "\u0001é\n"}, "z": 4, "version": 1}"#;
        let canonical = r#"{"a\"b":{"":"\u0001é\n","prefix_o":3,"prefix_of_8_a":2,"prefix_of_8_b":1},"z":4}"#;
        let expected: [u8; 32] = Sha256::digest(canonical).into();
        assert_eq!(digest(text), expected);
        // Numbers are written as by serde_json.
        let numbers: serde_json::Value =
            serde_json::from_str("[1, -2, 0.5, 1e30, -1.5e-7, true, null]").unwrap();
        let expected: [u8; 32] = Sha256::digest(format!("{{\"z\":{numbers}}}")).into();
        assert_eq!(digest(r#"{"z": [1, -2, 0.5, 1e30, -1.5e-7, true, null]}"#), expected);
    }
}
