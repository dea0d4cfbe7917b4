//! The values in sections: texts, numbers, expressions, lists and mappings of names.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::words::{Word, read_word};
use super::{Read, entries, wrong_form};
use crate::diagnostics::{Code, Sink, listed, nearest};
use crate::dtype::DType;
use crate::source::{Node, Scalar, Span, Spanned, Value};

/// Implements the parts of `JsonSchema` that all inlined leaves share.
macro_rules! inline_schema {
    ([$($param:ident)?] $ty:ty, |$generator:ident| $schema:expr) => {
        impl $(<$param: JsonSchema>)? JsonSchema for $ty {
            fn schema_name() -> Cow<'static, str> {
                stringify!($ty).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}
pub(super) use inline_schema;

/// The scalar of a node; reports lists, mappings and null.
pub(super) fn scalar<'a, T: Read>(node: &'a Node, sink: &mut Sink) -> Option<&'a Scalar> {
    match &node.value {
        Value::Scalar(scalar) if !scalar.is_null() => Some(scalar),
        _ => {
            wrong_form::<T>(node, sink);
            None
        }
    }
}

impl Read for Spanned<String> {
    const WHAT: &'static str = "a text";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        match &node.value {
            Value::Scalar(scalar) if scalar.text.trim().is_empty() => {
                sink.error(Code::Empty, node.span, "the text is empty");
                None
            }
            _ => Some(Spanned::new(scalar::<Self>(node, sink)?.text.trim_end().to_owned(), node.span)),
        }
    }
}
inline_schema!([] Spanned<String>, |_generator| json_schema!({ "type": "string", "minLength": 1 }));

impl Read for Spanned<i64> {
    const WHAT: &'static str = "an integer";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        let scalar = scalar::<Self>(node, sink)?;
        match scalar.text.parse() {
            Ok(value) if scalar.plain => Some(Spanned::new(value, node.span)),
            _ if scalar.plain && scalar.text.parse::<f64>().is_ok() => {
                let message = format!("`{}` is not a 64-bit integer", scalar.text);
                sink.error(Code::BadNumber, node.span, message);
                None
            }
            _ => {
                wrong_form::<Self>(node, sink);
                None
            }
        }
    }
}
inline_schema!([] Spanned<i64>, |_generator| json_schema!({ "type": "integer" }));

impl Read for Spanned<f64> {
    const WHAT: &'static str = "a number";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        let scalar = scalar::<Self>(node, sink)?;
        match scalar.text.parse::<f64>() {
            Ok(value) if scalar.plain && value.is_finite() => Some(Spanned::new(value, node.span)),
            Ok(_) if scalar.plain => {
                sink.error(Code::BadNumber, node.span, format!("`{}` is not a finite number", scalar.text));
                None
            }
            _ => {
                wrong_form::<Self>(node, sink);
                None
            }
        }
    }
}
inline_schema!([] Spanned<f64>, |_generator| json_schema!({ "type": "number" }));

impl Read for Spanned<bool> {
    const WHAT: &'static str = "`true` or `false`";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        match scalar::<Self>(node, sink)? {
            Scalar { text, plain: true, .. } if text == "true" => Some(Spanned::new(true, node.span)),
            Scalar { text, plain: true, .. } if text == "false" => Some(Spanned::new(false, node.span)),
            _ => {
                wrong_form::<Self>(node, sink);
                None
            }
        }
    }
}
inline_schema!([] Spanned<bool>, |_generator| json_schema!({ "type": "boolean" }));

impl Read for Spanned<DType> {
    const WHAT: &'static str = "a dtype";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        let text = &scalar::<Self>(node, sink)?.text;
        match DType::ALL.into_iter().find(|dtype| dtype.name() == text) {
            Some(dtype) => Some(Spanned::new(dtype, node.span)),
            None => {
                unknown_dtype(sink, node.span, text);
                None
            }
        }
    }
}
inline_schema!([] Spanned<DType>, |_generator| {
    let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    json_schema!({ "enum": names })
});

/// Reports an unknown dtype, with a suggestion for long names (`float32`) and misspellings.
pub(crate) fn unknown_dtype(sink: &mut Sink, span: Span, text: &str) {
    let near = match DType::parse(text) {
        Some(dtype) => Some(dtype.name()),
        None => nearest(text, DType::ALL.iter().map(|dtype| dtype.name())),
    };
    let error = sink.error(Code::UnknownDtype, span, format!("unknown dtype `{text}`"));
    error.suggest(near);
    if near.is_none() {
        error.note(format!("expected one of {}", listed(DType::ALL.iter().map(|dtype| dtype.name()))));
    }
}

/// The text of an expression and its location in the file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expression {
    /// The text.
    pub text: String,
    /// Its span, including quotes.
    pub span: Span,
    /// The offset of its first byte in the file, if the file contains it verbatim (without escapes).
    pub verbatim_at: Option<usize>,
}

impl Expression {
    /// The span in the file of a range of the expression's text.
    pub fn span_of(&self, start: usize, end: usize) -> Span {
        match self.verbatim_at {
            Some(at) if !self.text.contains('\n') && start <= end && end <= self.text.len() => {
                Span::new(at + start, at + end)
            }
            _ => self.span,
        }
    }
}

impl Read for Expression {
    const WHAT: &'static str = "an expression";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        let Scalar { text, verbatim_at, .. } = scalar::<Self>(node, sink)?.clone();
        Some(Expression { text, span: node.span, verbatim_at })
    }
}
inline_schema!([] Expression, |_generator| json_schema!({ "type": ["string", "number", "boolean"] }));

impl<T: Read> Read for Spanned<Vec<T>> {
    const WHAT: &'static str = "a list";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        let Value::Sequence(items) = &node.value else {
            wrong_form::<Self>(node, sink);
            return None;
        };
        let items = items.iter().filter_map(|item| T::read(item, sink)).collect();
        Some(Spanned::new(items, node.span))
    }
}
inline_schema!([T] Spanned<Vec<T>>, |generator| {
    json_schema!({ "type": "array", "items": generator.subschema_for::<T>() })
});

/// A mapping with user-defined keys.
#[derive(Debug, Clone, Default)]
pub struct Named<T> {
    /// Its span.
    pub span: Span,
    /// The entries, without duplicate names.
    pub entries: Vec<NamedEntry<T>>,
}

/// One entry of a [`Named`] mapping.
#[derive(Debug, Clone)]
pub struct NamedEntry<T> {
    /// The name.
    pub name: Spanned<String>,
    /// The value; `None` if it is invalid, which has been reported.
    pub value: Option<T>,
}

impl<T: Read> Read for Named<T> {
    const WHAT: &'static str = "a mapping of names";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        let mut named = Named { span: node.span, entries: Vec::new() };
        for (name, value) in entries::<Self>(node, sink)? {
            let outer = sink.owner.replace(name.span);
            let value = T::read(value, sink);
            sink.owner = outer;
            named.entries.push(NamedEntry { name, value });
        }
        Some(named)
    }
}
inline_schema!([T] Named<T>, |generator| {
    json_schema!({ "type": "object", "additionalProperties": generator.subschema_for::<T>() })
});

/// A property that may depend on an enum parameter: the value, or `{ by: param, CASE: value, ... }`.
#[derive(Debug, Clone)]
pub enum RawCases<T> {
    /// The same for all.
    One(T),
    /// One entry per case.
    By {
        /// The parameter.
        by: Spanned<String>,
        /// The cases.
        cases: Named<T>,
    },
}

impl<T: Read> Read for RawCases<T> {
    const WHAT: &'static str = T::WHAT;

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        if !matches!(node.value, Value::Mapping(_)) {
            return T::read(node, sink).map(RawCases::One);
        }
        let mut by = None;
        let mut cases = Named { span: node.span, entries: Vec::new() };
        let mut has_by = false;
        for (name, value) in entries::<Self>(node, sink)? {
            if name.value == "by" {
                has_by = true;
                by = Spanned::<String>::read(value, sink);
            } else {
                cases.entries.push(NamedEntry { name, value: T::read(value, sink) });
            }
        }
        if !has_by {
            super::missing_key(sink, node, "cases", "by");
        }
        by.map(|by| RawCases::By { by, cases })
    }
}
inline_schema!([T] RawCases<T>, |generator| {
    let value = generator.subschema_for::<T>();
    let cases = json_schema!({
        "type": "object",
        "properties": { "by": { "type": "string", "description": "The enum parameter that selects the case." } },
        "required": ["by"],
        "additionalProperties": value.clone(),
    });
    json_schema!({ "anyOf": [value, cases] })
});

/// How selection buckets the sizes of an axis.
#[derive(Debug, Clone)]
pub enum RawSelect {
    /// Every size is a separate key.
    Exact,
    /// Not part of the key.
    Ignored,
    /// Buckets with these upper bounds.
    Bucket(Spanned<Vec<Spanned<i64>>>),
}

impl Read for RawSelect {
    const WHAT: &'static str = "`exact`, `ignored` or `{ bucket: [...] }`";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        match &node.value {
            Value::Mapping(_) => super::language::RawBucket::read(node, sink)?.bucket.map(RawSelect::Bucket),
            _ => read_word::<Self, RawSelect>(node, sink).map(|word| word.value),
        }
    }
}
impl Word for RawSelect {
    const WHAT: &'static str = "a bucketing of an axis";
    const WORDS: &'static [(&'static str, Self)] =
        &[("exact", RawSelect::Exact), ("ignored", RawSelect::Ignored)];
}
inline_schema!([] RawSelect, |generator| {
    let bucket = generator.subschema_for::<super::language::RawBucket>();
    json_schema!({ "anyOf": [{ "enum": ["exact", "ignored"] }, bucket] })
});

/// Sizes that property tests draw.
#[derive(Debug, Clone)]
pub enum RawFuzz {
    /// `lo..hi`.
    Range(Spanned<String>),
    /// A list of sizes.
    List(Spanned<Vec<Spanned<i64>>>),
}

impl Read for RawFuzz {
    const WHAT: &'static str = "a range `lo..hi` or a list of sizes";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        match &node.value {
            Value::Sequence(_) => Read::read(node, sink).map(RawFuzz::List),
            _ => Some(RawFuzz::Range(Spanned::new(scalar::<Self>(node, sink)?.text.clone(), node.span))),
        }
    }
}
inline_schema!([] RawFuzz, |_generator| json_schema!({
    "anyOf": [
        { "type": "string", "pattern": "^[0-9]+\\.\\.[0-9]+$" },
        { "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1 },
    ]
}));

/// A value whose type depends on its name: a size, sizes, a dtype, a number, a bool, a case.
#[derive(Debug, Clone)]
pub enum OneOrMany {
    /// A single value.
    One(Spanned<Scalar>),
    /// A list of single values.
    Many(Spanned<Vec<Spanned<Scalar>>>),
}

impl OneOrMany {
    /// Its span.
    pub fn span(&self) -> Span {
        match self {
            OneOrMany::One(one) => one.span,
            OneOrMany::Many(many) => many.span,
        }
    }
}

impl Read for Spanned<Scalar> {
    const WHAT: &'static str = "a single value";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        scalar::<Self>(node, sink).map(|scalar| Spanned::new(scalar.clone(), node.span))
    }
}

impl Read for OneOrMany {
    const WHAT: &'static str = "a single value or a list";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        match &node.value {
            Value::Sequence(_) => Read::read(node, sink).map(OneOrMany::Many),
            _ => Some(OneOrMany::One(Spanned::new(scalar::<Self>(node, sink)?.clone(), node.span))),
        }
    }
}
inline_schema!([] OneOrMany, |_generator| json_schema!({
    "anyOf": [
        { "type": ["string", "number", "boolean"] },
        { "type": "array", "items": { "type": ["string", "integer"] } },
    ]
}));
inline_schema!([] Spanned<Scalar>, |_generator| json_schema!({ "type": ["string", "number", "boolean"] }));
