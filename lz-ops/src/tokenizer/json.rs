//! A JSON tree that borrows its strings from the text.
//!
//! Loading a tokenizer checks and hashes the whole definition, which has hundreds of thousands of strings. Building a
//! `serde_json::Value`, which owns and indexes each of them, takes longer than all of that.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Number, Value};

/// A JSON value. An object has its keys in the order of the text; of equal keys the last is the valid one. A borrowed string is in the
/// parsed text without escapes, so it has no character that needs one.
#[derive(Debug, Clone, PartialEq)]
pub enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    String(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// What [`Json::get`] returns for a missing key.
static MISSING: Json<'static> = Json::Null;

impl<'a> Json<'a> {
    /// Parses a text.
    pub fn parse(text: &'a [u8]) -> Result<Json<'a>, serde_json::Error> {
        match std::str::from_utf8(text) {
            Ok(text) => serde_json::from_str(text),
            // Returns the error and its location.
            Err(_) => serde_json::from_slice(text),
        }
    }

    /// The value of a key; null if it is missing or this is not an object.
    pub fn get(&self, key: &str) -> &Json<'a> {
        let entry = self.entries().iter().rfind(|(name, _)| name == key);
        entry.map_or(&MISSING, |(_, value)| value)
    }

    /// Replaces every value of a key by null.
    pub fn set_null(&mut self, key: &str) {
        let Json::Object(entries) = self else { return };
        for (_, value) in entries.iter_mut().filter(|(name, _)| name == key) {
            *value = Json::Null;
        }
    }

    /// The entries of an object.
    pub fn entries(&self) -> &[(Cow<'a, str>, Json<'a>)] {
        match self {
            Json::Object(entries) => entries,
            _ => &[],
        }
    }

    /// The items of an array.
    pub fn items(&self) -> &[Json<'a>] {
        match self {
            Json::Array(items) => items,
            _ => &[],
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }

    /// A copy without the entries of lists and objects that have more than `most`.
    pub fn outline(&self, most: usize) -> Value {
        match self {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => Value::Number(number.clone()),
            Json::String(text) => Value::String(text.as_ref().to_owned()),
            Json::Array(items) if items.len() > most => Value::Array(Vec::new()),
            Json::Object(entries) if entries.len() > most => Value::Object(serde_json::Map::new()),
            Json::Array(items) => items.iter().map(|item| item.outline(most)).collect(),
            Json::Object(entries) => {
                entries.iter().map(|(key, value)| (key.as_ref().to_owned(), value.outline(most))).collect()
            }
        }
    }
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outline(usize::MAX).fmt(f)
    }
}

/// Keeps all of several equal keys.
impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => serializer.serialize_unit(),
            Json::Bool(value) => serializer.serialize_bool(*value),
            Json::Number(number) => number.serialize(serializer),
            Json::String(text) => serializer.serialize_str(text),
            Json::Array(items) => serializer.collect_seq(items),
            Json::Object(entries) => serializer.collect_map(entries.iter().map(|(key, value)| (key, value))),
        }
    }
}

/// A key, borrowed if it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'a> Deserialize<'a> for Key<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Key<'a>, D::Error> {
        struct KeyVisitor;
        impl<'a> Visitor<'a> for KeyVisitor {
            type Value = Key<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Key<'a>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Key<'a>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct TreeVisitor;

impl<'a> Visitor<'a> for TreeVisitor {
    type Value = Json<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Json<'a>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json<'a>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json<'a>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json<'a>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json<'a>, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Json<'a>, E> {
        Ok(Json::String(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json<'a>, E> {
        Ok(Json::String(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut access: A) -> Result<Json<'a>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            if items.is_empty() {
                // Most lists are the pairs of merges.
                items.reserve_exact(2);
            }
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut access: A) -> Result<Json<'a>, A::Error> {
        let mut entries = Vec::new();
        while let Some((Key(key), value)) = access.next_entry()? {
            entries.push((key, value));
        }
        Ok(Json::Object(entries))
    }
}

impl<'a> Deserialize<'a> for Json<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Json<'a>, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_equal_to_that_of_serde_json() {
        let texts = [
            r#"{"a": [1, -2, 3.5, 1e400000, "x\né", true, null], "b": {"c": {}}, "é\"": [], "a": 7}"#,
            r#"[18446744073709551615, -9223372036854775808, 0.1, 1E-7, 123456789012345678901234567890]"#,
            r#"{"a": 1,}"#,
            "[1, 2",
            "{\"a\": \"\u{1}\"}",
            "\"\\ud800\"",
            "nul",
            "",
            "1 2",
        ];
        for text in texts {
            let expected: Result<Value, _> = serde_json::from_str(text);
            let found = Json::parse(text.as_bytes());
            match (&expected, &found) {
                (Ok(expected), Ok(found)) => assert_eq!(*expected, found.outline(usize::MAX), "{text}"),
                (Err(expected), Err(found)) => assert_eq!(expected.to_string(), found.to_string(), "{text}"),
                _ => panic!("{text}: {expected:?} {found:?}"),
            }
        }
        assert!(Json::parse(b"\"\xff\"").is_err());
        assert!(Json::parse("[".repeat(1000).as_bytes()).is_err());
    }

    #[test]
    fn an_outline_keeps_the_types_of_large_parts() {
        let tree = Json::parse(br#"{"vocab": {"a": 0, "b": 1, "c": 2}, "merges": [1, 2, 3], "type": "BPE"}"#);
        let outline = tree.unwrap().outline(2);
        assert_eq!(outline, Value::Object(serde_json::Map::new()));
        let tree = Json::parse(br#"{"vocab": {"a": 0, "b": 1, "c": 2}, "merges": [1, 2, 3]}"#).unwrap();
        assert_eq!(tree.outline(2), serde_json::json!({"vocab": {}, "merges": []}));
        assert_eq!(tree.get("vocab").entries().len(), 3);
        assert!(tree.get("type").is_null() && tree.get("merges").get("x").is_null());
    }
}
