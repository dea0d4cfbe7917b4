//! JSON as a tree that keeps order and duplicate keys, and a reader that collects what is wrong with its path.
//!
//! It knows nothing of definitions.

use std::fmt;

use lz_schema::diagnostics::nearest;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{Problem, ProblemKind};

/// One JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// An integer that fits 64 bits.
    Int(i64),
    /// Any other number.
    Number,
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    fn what(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a bool",
            Json::Int(_) | Json::Number => "a number",
            Json::Text(_) => "a text",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Number, Json::Int))
    }

    fn visit_f64<E>(self, _value: f64) -> Result<Json, E> {
        Ok(Json::Number)
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            object.push(entry);
        }
        Ok(Json::Object(object))
    }
}

/// The path of an entry: `$.axes.head_dim`, or `$.axes["head dim"]` for a key that is no word.
pub(super) fn entry(path: &str, key: &str) -> String {
    let word =
        !key.is_empty() && key.chars().all(|character| character.is_alphanumeric() || character == '_');
    if word { format!("{path}.{key}") } else { format!("{path}[{key:?}]") }
}

/// Reads a tree and collects everything that is wrong with it.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub problems: Vec<Problem>,
}

impl Reader {
    pub(super) fn problem(&mut self, path: impl Into<String>, kind: ProblemKind) {
        self.problems.push(Problem { path: path.into(), kind });
    }

    fn wrong(&mut self, path: &str, expected: &'static str, found: &Json) {
        self.problem(path, ProblemKind::WrongForm { expected, found: found.what() });
    }

    /// The entries of an object, each key once.
    pub(super) fn entries<'a>(&mut self, path: &str, json: &'a Json) -> Option<Vec<(&'a str, &'a Json)>> {
        let Json::Object(object) = json else {
            self.wrong(path, "an object", json);
            return None;
        };
        let mut entries: Vec<(&str, &Json)> = Vec::with_capacity(object.len());
        for (key, value) in object {
            if entries.iter().any(|(earlier, _)| earlier == key) {
                self.problem(entry(path, key), ProblemKind::DuplicateKey);
            } else {
                entries.push((key, value));
            }
        }
        Some(entries)
    }

    /// The entries of an object with closed keys; a null stands for a key that is not there, unless it is one of `nullable`.
    pub(super) fn closed<'a>(
        &mut self,
        path: &str,
        json: &'a Json,
        keys: &[&str],
        nullable: &[&str],
    ) -> Option<Vec<(&'a str, &'a Json)>> {
        let mut entries = self.entries(path, json)?;
        entries.retain(|(key, value)| {
            let known = keys.contains(key);
            if !known {
                let suggestion = nearest(key, keys.iter().copied()).map(str::to_owned);
                self.problem(entry(path, key), ProblemKind::UnknownKey { suggestion });
            }
            known && (**value != Json::Null || nullable.contains(key))
        });
        Some(entries)
    }

    /// A text.
    pub(super) fn text(&mut self, path: &str, json: &Json) -> Option<String> {
        match json {
            Json::Text(text) => Some(text.clone()),
            other => {
                self.wrong(path, "a text", other);
                None
            }
        }
    }

    /// A text that says something.
    pub(super) fn full_text(&mut self, path: &str, json: &Json) -> Option<String> {
        let text = self.text(path, json)?;
        if text.is_empty() {
            self.problem(path, ProblemKind::Empty);
            return None;
        }
        Some(text)
    }

    /// A list of texts that each say something.
    pub(super) fn texts(&mut self, path: &str, json: &Json) -> Option<Vec<String>> {
        let Json::List(items) = json else {
            self.wrong(path, "a list of texts", json);
            return None;
        };
        let texts = items.iter().enumerate();
        let texts: Vec<Option<String>> =
            texts.map(|(at, item)| self.full_text(&format!("{path}[{at}]"), item)).collect();
        texts.into_iter().collect()
    }

    /// A bool.
    pub(super) fn flag(&mut self, path: &str, json: &Json) -> Option<bool> {
        match json {
            Json::Bool(flag) => Some(*flag),
            other => {
                self.wrong(path, "a bool", other);
                None
            }
        }
    }

    /// A size.
    pub(super) fn size(&mut self, path: &str, json: &Json) -> Option<i64> {
        match json {
            Json::Int(size) if *size >= 0 => Some(*size),
            Json::Int(_) | Json::Number => {
                self.problem(path, ProblemKind::BadSize);
                None
            }
            other => {
                self.wrong(path, "an integer", other);
                None
            }
        }
    }
}
