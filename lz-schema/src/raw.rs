//! The parsed form of the schema language: one declaration per section, read from the YAML tree; all errors are collected.
//!
//! The declarations in `language.rs` define the allowed keys: the parser, the suggestions for unknown keys and the JSON Schema
//! for editors are derived from them. Names are not resolved and expressions are not type-checked here.

pub mod definition;
pub mod language;
mod leaves;
mod words;

pub(crate) use leaves::unknown_dtype;
pub use leaves::{Expression, Named, NamedEntry, OneOrMany, RawCases, RawFuzz, RawSelect};
pub use words::{CategoryWord, FieldWord, RawSemantics, SEMANTICS, Word};

use std::collections::HashMap;

use crate::diagnostics::{Code, Sink, listed};
use crate::source::{Node, Span, Spanned, Value};

/// A type that can be read from a YAML value.
pub trait Read: Sized {
    /// Its description in error messages: `a list`.
    const WHAT: &'static str;

    /// Reads the value. Errors are added to the sink; `None` means that the value is invalid.
    fn read(node: &Node, sink: &mut Sink) -> Option<Self>;
}

/// Declares a mapping with fixed keys: the struct, its parser and its JSON Schema.
///
/// All fields are `Option`s, because a file with errors is read as far as possible. Missing `required` keys are reported here
/// and not in later stages. An `inherited` key is required unless the mapping has the key `specializes`.
macro_rules! mapping {
    (
        $(#[doc = $doc:literal])+
        $name:ident ($what:literal) {
            $( $(#[doc = $field_doc:literal])+ $need:ident $field:ident : $ty:ty, )+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Default)]
        pub struct $name {
            /// The span of the mapping.
            pub span: $crate::source::Span,
            /// The keys in the file, including those with invalid values.
            pub keys: Vec<&'static str>,
            $( $(#[doc = $field_doc])+ pub $field: Option<$ty>, )+
        }

        impl $crate::raw::Read for $name {
            const WHAT: &'static str = concat!("a mapping (", $what, ")");

            fn read(node: &$crate::source::Node, sink: &mut $crate::diagnostics::Sink) -> Option<Self> {
                let keys = [$($crate::raw::key_of(stringify!($field))),+];
                let mut read = $name { span: node.span, ..Default::default() };
                for (key, value) in $crate::raw::entries::<$name>(node, sink)? {
                    read.keys.extend(keys.iter().find(|known| **known == key.value));
                    match key.value.as_str() {
                        $(
                            word if word == $crate::raw::key_of(stringify!($field)) => {
                                read.$field = <$ty as $crate::raw::Read>::read(value, sink);
                            }
                        )+
                        _ => $crate::raw::unknown_key(sink, &key, $what, &keys),
                    }
                }
                $(
                    let key = $crate::raw::key_of(stringify!($field));
                    let needed = match stringify!($need) {
                        "inherited" => !read.keys.contains(&"specializes"),
                        need => need == "required",
                    };
                    if needed && !read.keys.contains(&key) {
                        $crate::raw::missing_key(sink, node, $what, key);
                    }
                )+
                Some(read)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).trim_start_matches("Raw").into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut properties = serde_json::Map::new();
                let mut required: Vec<&str> = Vec::new();
                let mut inherited: Vec<&str> = Vec::new();
                $(
                    let described = concat!($($field_doc, "\n"),+);
                    let schema = generator.subschema_for::<$ty>();
                    let key = $crate::raw::key_of(stringify!($field));
                    properties.insert(key.to_owned(), $crate::raw::described(schema, described));
                    match stringify!($need) {
                        "required" => required.push(key),
                        "inherited" => inherited.push(key),
                        _ => {}
                    }
                )+
                let mut schema = schemars::json_schema!({
                    "description": concat!($($doc, "\n"),+).trim(),
                    "type": "object",
                    "additionalProperties": false,
                    "properties": properties,
                    "required": required,
                });
                if !inherited.is_empty() {
                    let alternatives = [inherited, vec!["specializes"]].map(|keys| serde_json::json!({ "required": keys }));
                    schema.insert("anyOf".to_owned(), serde_json::json!(alternatives));
                }
                schema
            }
        }
    };
}
pub(crate) use mapping;

/// The key of a field. A trailing underscore, which avoids Rust keywords, is removed.
fn key_of(field: &'static str) -> &'static str {
    field.trim_end_matches('_')
}

/// A property's schema with its description. Draft 7 ignores siblings of `$ref`, so the reference is wrapped.
fn described(schema: schemars::Schema, description: &str) -> serde_json::Value {
    let description = description.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let mut schema = schema.to_value();
    match schema.as_object_mut() {
        Some(object) if !object.contains_key("$ref") => {
            object.insert("description".to_owned(), description.trim().into());
            schema
        }
        _ => serde_json::json!({ "description": description.trim(), "allOf": [schema] }),
    }
}

/// The entries of a mapping without duplicate keys. Reports values that are not mappings, keys that are not words, and
/// duplicates.
fn entries<'a, T: Read>(node: &'a Node, sink: &mut Sink) -> Option<Vec<(Spanned<String>, &'a Node)>> {
    let Value::Mapping(pairs) = &node.value else {
        wrong_form::<T>(node, sink);
        return None;
    };
    let mut entries: Vec<(Spanned<String>, &Node)> = Vec::with_capacity(pairs.len());
    let mut seen: HashMap<&str, Span> = HashMap::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Value::Scalar(scalar) = &key.value else {
            sink.error(Code::WrongForm, key.span, "a key must be a single word");
            continue;
        };
        match seen.insert(&scalar.text, key.span) {
            Some(earlier) => {
                sink.error(Code::DuplicateKey, key.span, format!("duplicate key `{}`", scalar.text))
                    .also(earlier, "first used here");
            }
            None => entries.push((Spanned::new(scalar.text.clone(), key.span), value)),
        }
    }
    Some(entries)
}

fn unknown_key(sink: &mut Sink, key: &Spanned<String>, what: &str, known: &[&str]) {
    let near = sink.nearest(&key.value, known.iter().copied());
    let error = sink.error(Code::UnknownKey, key.span, format!("unknown key `{}` in {what}", key.value));
    error.suggest(near);
    if near.is_none() {
        error.note(format!("expected one of {}", listed(known.iter().copied())));
    }
}

fn missing_key(sink: &mut Sink, node: &Node, what: &str, key: &str) {
    let span = sink.owner.unwrap_or_else(|| head(node));
    sink.error(Code::MissingKey, span, format!("`{key}` is missing in {what}"));
}

/// The span to underline for a mapping as a whole: the mapping if written in braces, its first key otherwise.
pub(crate) fn head(node: &Node) -> Span {
    match &node.value {
        Value::Mapping(entries) => match entries.first() {
            Some((key, _)) if key.span.start == node.span.start => key.span,
            _ => node.span,
        },
        _ => node.span,
    }
}

fn wrong_form<T: Read>(node: &Node, sink: &mut Sink) {
    let found = match &node.value {
        Value::Alias => return,
        Value::Scalar(scalar) if scalar.is_null() => "nothing".to_owned(),
        Value::Scalar(scalar) if scalar.plain => format!("`{}`", first_line(&scalar.text)),
        Value::Scalar(_) => "a quoted text".to_owned(),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
    };
    sink.error(Code::WrongForm, head(node), format!("expected {}, found {found}", T::WHAT));
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}
