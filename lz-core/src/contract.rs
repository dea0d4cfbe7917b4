//! Checks a JSON file against its contract (JSON Schema) and reports all problems with spans and suggestions.
//!
//! Supports the subset of JSON Schema that the contracts use; a test checks that they use nothing else, because an unknown keyword
//! would go unchecked. Nothing here depends on a particular contract.

use std::collections::HashMap;
use std::sync::Arc;

use lz_schema::diagnostics::{Code, Report, Sink, listed};
use lz_schema::source::{self, Node, Scalar, Source, Span, Value};
use serde_json::Value as Json;

/// A file that was checked.
#[derive(Debug)]
pub struct Checked {
    /// The text that was checked.
    pub source: Arc<Source>,
    /// The tree with spans.
    pub root: Node,
    /// The same as plain data.
    pub json: Json,
}

/// Reads and checks a file; problems are in the sink. `None` if the text cannot be parsed.
pub fn read(contract: &str, path: &str, text: &str) -> (Sink, Option<Checked>) {
    let source = Arc::new(Source::new(path, text));
    let mut sink = Sink::new(Arc::clone(&source));
    let json: Json = match serde_json::from_str(&source.text) {
        Ok(json) => json,
        Err(error) => {
            let span = span(&source.text, error.line(), error.column());
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or(&message);
            sink.error(Code::JsonSyntax, span, format!("invalid JSON: {message}"));
            return (sink, None);
        }
    };
    // JSON is a subset of YAML, so the YAML reader provides the spans.
    let (Some(root), _) = source::parse(&source) else {
        sink.error(Code::JsonSyntax, Span::new(0, 0), "this JSON cannot be parsed with spans");
        return (sink, None);
    };
    match serde_json::from_str::<Json>(contract) {
        Ok(schema) => Checker { schema: &schema, sink: &mut sink }.node(&schema, &root, "the file"),
        Err(error) => {
            sink.error(Code::JsonSyntax, Span::new(0, 0), format!("the contract itself is invalid: {error}"));
        }
    }
    (sink, Some(Checked { source, root, json }))
}

/// The report of a sink with diagnostics.
pub fn report(sink: Sink) -> Report {
    let path = sink.source.path.clone();
    Report::of_one(sink.diagnostics, &path)
}

/// The span of the character at a line and column from 1 (columns in bytes, as in serde_json).
fn span(text: &str, line: usize, column: usize) -> Span {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let mut at = (start + column.saturating_sub(1)).min(text.len().saturating_sub(1));
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let width = text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
    Span::new(at, at + width)
}

/// The value of a key in a mapping.
pub fn get<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    entries(node).find(|(name, _, _)| *name == key).map(|(_, _, value)| value)
}

/// The entries of a mapping: name, span of the name, value.
pub fn entries(node: &Node) -> impl Iterator<Item = (&str, Span, &Node)> {
    let pairs = match &node.value {
        Value::Mapping(pairs) => pairs.as_slice(),
        _ => &[],
    };
    pairs.iter().filter_map(|(key, value)| match &key.value {
        Value::Scalar(scalar) => Some((scalar.text.as_str(), key.span, value)),
        _ => None,
    })
}

/// The items of a list.
pub fn items(node: &Node) -> &[Node] {
    match &node.value {
        Value::Sequence(items) => items,
        _ => &[],
    }
}

/// The text of a scalar.
pub fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        _ => None,
    }
}

/// The offset of a string's content, if the file contains it without escapes.
pub fn verbatim(node: &Node) -> Option<usize> {
    match &node.value {
        Value::Scalar(scalar) => scalar.verbatim_at,
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Null,
    Bool,
    Integer,
    Number,
    Text,
    List,
    Mapping,
}

impl Form {
    fn of(node: &Node) -> Form {
        match &node.value {
            Value::Mapping(_) => Form::Mapping,
            Value::Sequence(_) => Form::List,
            // JSON has no aliases.
            Value::Alias => Form::Null,
            Value::Scalar(Scalar { plain: false, .. }) => Form::Text,
            Value::Scalar(scalar) => match scalar.text.as_str() {
                "null" => Form::Null,
                "true" | "false" => Form::Bool,
                text if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() => Form::Integer,
                _ => Form::Number,
            },
        }
    }

    fn fits(self, word: &str) -> bool {
        match word {
            "null" => self == Form::Null,
            "boolean" => self == Form::Bool,
            "integer" => self == Form::Integer,
            "number" => matches!(self, Form::Integer | Form::Number),
            "string" => self == Form::Text,
            "array" => self == Form::List,
            "object" => self == Form::Mapping,
            _ => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Form::Null => "`null`",
            Form::Bool => "`true` or `false`",
            Form::Integer => "a whole number",
            Form::Number => "a number",
            Form::Text => "a text",
            Form::List => "a list",
            Form::Mapping => "a mapping",
        }
    }
}

struct Checker<'a> {
    schema: &'a Json,
    sink: &'a mut Sink,
}

impl Checker<'_> {
    fn node(&mut self, schema: &Json, node: &Node, what: &str) {
        let schema = match schema.get("$ref").and_then(Json::as_str) {
            Some(reference) => self.schema.pointer(reference.trim_start_matches('#')).cloned(),
            None => Some(schema.clone()),
        };
        let Some(schema) = schema else { return };
        if !self.form(&schema, node, what) || !self.word(&schema, node, what) {
            return;
        }
        match &node.value {
            Value::Mapping(_) => self.mapping(&schema, node, what),
            Value::Sequence(items) => self.list(&schema, node, items, what),
            Value::Scalar(scalar) => self.range(&schema, node, scalar, what),
            Value::Alias => {}
        }
    }

    fn form(&mut self, schema: &Json, node: &Node, what: &str) -> bool {
        let words: Vec<&str> = match schema.get("type") {
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(several)) => several.iter().filter_map(Json::as_str).collect(),
            _ => return true,
        };
        let found = Form::of(node);
        if words.iter().any(|word| found.fits(word)) {
            return true;
        }
        let needed: Vec<&str> = words
            .iter()
            .map(|word| match *word {
                "null" => "`null`",
                "boolean" => "`true` or `false`",
                "integer" => "a whole number",
                "number" => "a number",
                "string" => "a text",
                "array" => "a list",
                _ => "a mapping",
            })
            .collect();
        let found = match &node.value {
            Value::Scalar(scalar) if scalar.plain => format!("`{}`", scalar.text),
            _ => found.name().to_owned(),
        };
        let message = format!("{what} needs {}, found {found}", needed.join(" or "));
        self.sink.error(Code::WrongForm, first_line(&self.sink.source, node.span), message);
        false
    }

    fn word(&mut self, schema: &Json, node: &Node, what: &str) -> bool {
        let Some(words) = schema.get("enum").and_then(Json::as_array) else { return true };
        let Some(found) = text(node) else { return true };
        if Form::of(node) == Form::Null || words.iter().filter_map(Json::as_str).any(|word| word == found) {
            return true;
        }
        let known: Vec<&str> = words.iter().filter_map(Json::as_str).collect();
        if what == "`schema_version`" {
            let message = format!("unknown contract version `{found}`");
            self.sink
                .error(Code::ContractVersion, node.span, message)
                .note(format!("this release supports {}", listed(known.iter().copied())));
            return false;
        }
        let near = self.sink.nearest(found, known.iter().copied());
        let error = self.sink.error(Code::UnknownWord, node.span, format!("{what} cannot be `{found}`"));
        error.suggest(near);
        if near.is_none() {
            error.note(format!("the choices are {}", listed(known)));
        }
        false
    }

    fn mapping(&mut self, schema: &Json, node: &Node, what: &str) {
        let empty = serde_json::Map::new();
        let properties = schema.get("properties").and_then(Json::as_object).unwrap_or(&empty);
        let mut seen: HashMap<&str, Span> = HashMap::new();
        for (key, span, value) in entries(node) {
            if let Some(&earlier) = seen.get(key) {
                self.sink
                    .error(Code::DuplicateKey, span, format!("`{key}` is written twice"))
                    .also(earlier, "first written here");
                continue;
            }
            seen.insert(key, span);
            match (properties.get(key), schema.get("additionalProperties")) {
                (Some(property), _) => self.node(property, value, &format!("`{key}`")),
                (None, Some(Json::Bool(false))) => {
                    let known: Vec<&str> = properties.keys().map(String::as_str).collect();
                    let full = self.sink.is_full();
                    let near = self.sink.nearest(key, known.iter().copied());
                    let error =
                        self.sink.error(Code::UnknownKey, span, format!("unknown key `{key}` in {what}"));
                    error.suggest(near);
                    if near.is_none() && !full {
                        error.note(format!("the keys are {}", listed(known)));
                    }
                }
                (None, Some(other)) => self.node(other, value, &format!("`{key}`")),
                (None, None) => {}
            }
        }
        for key in
            schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str)
        {
            if !seen.contains_key(key) {
                let span = first_line(&self.sink.source, node.span);
                self.sink.error(Code::MissingKey, span, format!("`{key}` is missing in {what}"));
            }
        }
        if seen.is_empty() && schema.get("minProperties").is_some() {
            self.sink.error(Code::Empty, node.span, format!("{what} is empty"));
        }
    }

    fn list(&mut self, schema: &Json, node: &Node, items: &[Node], what: &str) {
        if items.is_empty() && schema.get("minItems").is_some() {
            self.sink.error(Code::Empty, node.span, format!("{what} is empty"));
        }
        let mut words: HashMap<&str, Span> = HashMap::new();
        for item in items {
            let before = self.sink.diagnostics.len();
            if let Some(inner) = schema.get("items") {
                self.node(inner, item, &format!("an entry of {what}"));
            }
            let unique = schema.get("uniqueItems") == Some(&Json::Bool(true));
            if let (true, Some(word)) = (unique && before == self.sink.diagnostics.len(), text(item)) {
                match words.get(word) {
                    Some(earlier) => {
                        self.sink
                            .error(Code::RepeatedItem, item.span, format!("`{word}` is in {what} twice"))
                            .also(*earlier, "first written here");
                    }
                    None => {
                        words.insert(word, item.span);
                    }
                }
            }
        }
    }

    fn range(&mut self, schema: &Json, node: &Node, scalar: &Scalar, what: &str) {
        if Form::of(node) == Form::Text {
            if scalar.text.trim().is_empty() && schema.get("minLength").is_some() {
                self.sink.error(Code::Empty, node.span, format!("{what} is empty"));
            }
            return;
        }
        let Ok(value) = scalar.text.parse::<f64>() else { return };
        let bound = |key: &str| schema.get(key).and_then(Json::as_f64);
        let minimum = bound("minimum");
        // A format bounds the value too, because it is converted to a type of that width.
        let maximum = bound("maximum").or(match schema.get("format").and_then(Json::as_str) {
            Some("uint8") => Some(f64::from(u8::MAX)),
            Some("uint32") => Some(f64::from(u32::MAX)),
            // The largest integer that a double represents exactly.
            Some("int64") => Some(9_007_199_254_740_992.0),
            _ => None,
        });
        if minimum.is_some_and(|minimum| value < minimum) || maximum.is_some_and(|maximum| value > maximum) {
            let allowed = match (minimum, maximum) {
                (Some(minimum), Some(maximum)) if maximum < 9e15 => format!("from {minimum} to {maximum}"),
                (Some(minimum), _) => format!("from {minimum}"),
                (None, Some(maximum)) => format!("up to {maximum}"),
                (None, None) => String::new(),
            };
            let message = format!("{what} must be {allowed}, found {}", scalar.text);
            self.sink.error(Code::BadNumber, node.span, message);
        }
    }
}

/// The first line of a span, so that a whole file is not underlined.
pub fn first_line(source: &Source, span: Span) -> Span {
    let length = source.slice(span).lines().next().map_or(0, str::len);
    Span::new(span.start, span.start + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 19] = [
        "$schema",
        "title",
        "description",
        "type",
        "additionalProperties",
        "required",
        "properties",
        "definitions",
        "$ref",
        "enum",
        "items",
        "minItems",
        "uniqueItems",
        "minProperties",
        "minLength",
        "minimum",
        "maximum",
        "format",
        "default",
    ];

    fn unknown(schema: &Json, found: &mut Vec<String>) {
        let Some(object) = schema.as_object() else { return };
        for (key, value) in object {
            if !KNOWN.contains(&key.as_str()) {
                found.push(key.clone());
            }
            match (key.as_str(), value) {
                ("properties" | "definitions", Json::Object(inner)) => {
                    inner.values().for_each(|schema| unknown(schema, found));
                }
                ("items" | "additionalProperties", inner) => unknown(inner, found),
                _ => {}
            }
        }
    }

    #[test]
    fn contracts_use_only_supported_keywords() {
        for contract in
            [crate::descriptor::CONTRACT, include_str!("../schemas/contracts/dispatch_table.v1.schema.json")]
        {
            let schema: Json = serde_json::from_str(contract).unwrap();
            let mut found = Vec::new();
            unknown(&schema, &mut found);
            assert!(found.is_empty(), "{found:?}");
        }
    }
}
