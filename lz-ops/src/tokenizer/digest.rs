//! The digest of a definition. It does not depend on whitespace, key order, or truncation and padding settings (which are rejected or
//! ignored, never applied).

use std::borrow::Cow;

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
            parts.retain(|(key, value)| !WITHOUT_EFFECT.contains(&key.as_ref()) && !value.is_null());
            text.object(&parts);
        }
        other => text.value(other),
    }
    text.hash.update(&text.bytes);
    text.hash.finalize().into()
}

/// Bytes that are buffered before hashing.
const FLUSH: usize = 1 << 16;

/// The key and the value of an entry of an object.
type Entry<'j, 'a> = &'j (Cow<'a, str>, Json<'a>);

/// The first bytes of a key as a number in the order of keys. They decide most comparisons.
fn first_bytes(key: &str) -> u64 {
    match key.as_bytes().first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let missing = 8 * (8 - key.len() as u32);
            let first = key.bytes().fold(0, |first, byte| first << 8 | u64::from(byte));
            first.checked_shl(missing).unwrap_or(0)
        }
    }
}

/// The entries of an object by key, without those that a later entry of the same key replaces.
fn in_order<'j, 'a>(entries: &'j [(Cow<'a, str>, Json<'a>)]) -> Vec<Entry<'j, 'a>> {
    // Integers are sorted without branches: the first bytes of a key, then the position.
    let with_position =
        |(at, (key, _)): (usize, Entry<'j, 'a>)| u128::from(first_bytes(key)) << 64 | at as u128;
    let mut order: Vec<u128> = entries.iter().enumerate().map(with_position).collect();
    order.sort_unstable();
    let entry = |packed: u128| &entries[packed as u64 as usize];
    for equal in order.chunk_by_mut(|a, b| a >> 64 == b >> 64) {
        if equal.len() > 1 {
            equal.sort_unstable_by(|a, b| entry(*a).0.cmp(&entry(*b).0).then(a.cmp(b)));
        }
    }
    let mut sorted: Vec<Entry<'j, 'a>> = order.into_iter().map(entry).collect();
    // Of equal keys the last is valid.
    sorted.dedup_by(|later, kept| {
        let is_equal = later.0 == kept.0;
        if is_equal {
            *kept = *later;
        }
        is_equal
    });
    sorted
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
            Json::String(text) => self.string(text, matches!(text, Cow::Borrowed(_))),
            Json::Null => self.bytes.extend_from_slice(b"null"),
            Json::Bool(true) => self.bytes.extend_from_slice(b"true"),
            Json::Bool(false) => self.bytes.extend_from_slice(b"false"),
            Json::Number(number) => {
                // Writing a number to memory cannot fail.
                let written = serde_json::to_writer(&mut self.bytes, number);
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
        for (position, (key, value)) in entries.iter().enumerate() {
            if position > 0 {
                self.bytes.push(b',');
            }
            self.string(key, matches!(key, Cow::Borrowed(_)));
            self.bytes.push(b':');
            self.value(value);
        }
        self.bytes.push(b'}');
    }

    /// Appends a string. A borrowed one is in the parsed text without escapes, so it needs none.
    fn string(&mut self, text: &str, is_borrowed: bool) {
        if is_borrowed {
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
