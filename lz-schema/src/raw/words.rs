//! Words from fixed lists, and the keys and values of `semantics`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::language::{Access, TypeWord};
use super::leaves::{inline_schema, scalar};
use super::{Read, entries};
use crate::diagnostics::{Code, Sink, listed, nearest};
use crate::model::{Contiguous, DeviceRule, Kind, Measure, Role};
use crate::source::{Node, Spanned};

/// A word from a fixed list.
pub trait Word: Sized + Clone + 'static {
    /// Description of the words: `a role`.
    const WHAT: &'static str;
    /// The words with their values.
    const WORDS: &'static [(&'static str, Self)];
}

macro_rules! words {
    ($ty:ty, $what:literal, { $($word:literal => $value:expr),+ $(,)? }) => {
        impl Word for $ty {
            const WHAT: &'static str = $what;
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, $value)),+];
        }

        impl Read for Spanned<$ty> {
            const WHAT: &'static str = $what;

            fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
                read_word::<Self, $ty>(node, sink)
            }
        }

        inline_schema!([] Spanned<$ty>, |_generator| json_schema!({ "enum": [$($word),+] }));
    };
}

pub(super) fn read_word<T: Read, W: Word>(node: &Node, sink: &mut Sink) -> Option<Spanned<W>> {
    let text = &scalar::<T>(node, sink)?.text;
    if let Some((_, value)) = W::WORDS.iter().find(|(word, _)| word == text) {
        return Some(Spanned::new(value.clone(), node.span));
    }
    let words = || W::WORDS.iter().map(|(word, _)| *word);
    sink.error(Code::UnknownWord, node.span, format!("`{text}` is not {}", W::WHAT))
        .suggest(nearest(text, words()))
        .note(format!("expected one of {}", listed(words())));
    None
}

words!(Role, "a role of an axis", {
    "batch" => Role::Batch, "heads" => Role::Heads, "length" => Role::Length, "feature" => Role::Feature,
    "vocab" => Role::Vocab, "count" => Role::Count, "page" => Role::Page, "block" => Role::Block,
});
words!(Kind, "a kind of argument", {
    "tensor" => Kind::Tensor, "text" => Kind::Text, "tokenizer" => Kind::Tokenizer,
});
words!(Measure, "a measure of values", {
    "max_count" => Measure::MaxCount, "max_step" => Measure::MaxStep,
});
words!(Contiguous, "a contiguity", {
    "none" => Contiguous::None, "last" => Contiguous::Last, "all" => Contiguous::All,
});
words!(DeviceRule, "a device rule", {
    "same" => DeviceRule::Same, "host" => DeviceRule::Host, "any" => DeviceRule::Any,
});
words!(Access, "an access", {
    "read" => Access::Read, "read_write" => Access::ReadWrite,
});
words!(TypeWord, "a type of parameter", {
    "int" => TypeWord::Int, "f32" => TypeWord::F32,
    "f64" => TypeWord::F64, "bool" => TypeWord::Bool,
    "enum" => TypeWord::Enum,
});

words!(CategoryWord, "a category of reasons", {
    "backend" => CategoryWord("backend"), "determinism" => CategoryWord("determinism"),
    "distributed" => CategoryWord("distributed"), "dtype" => CategoryWord("dtype"),
    "graph" => CategoryWord("graph"), "hardware" => CategoryWord("hardware"), "health" => CategoryWord("health"),
    "layout" => CategoryWord("layout"), "memory" => CategoryWord("memory"), "plan" => CategoryWord("plan"),
    "policy" => CategoryWord("policy"), "quantization" => CategoryWord("quantization"),
    "shape" => CategoryWord("shape"), "speculative" => CategoryWord("speculative"),
    "tokenizer" => CategoryWord("tokenizer"), "validation" => CategoryWord("validation"),
});
words!(FieldWord, "a field of a reason", {
    "argument" => FieldWord("argument"), "axis" => FieldWord("axis"), "backend" => FieldWord("backend"),
    "detail" => FieldWord("detail"), "device" => FieldWord("device"), "found" => FieldWord("found"),
    "kernel" => FieldWord("kernel"), "required" => FieldWord("required"),
});

/// A category of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CategoryWord(pub &'static str);

/// A field that a reason carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldWord(pub &'static str);

/// The keys of `semantics`, each with its only allowed value and a description.
pub const SEMANTICS: &[(&str, &str, &str)] = &[
    ("causal", "offset", "Key j is visible to query i when j <= i + causal_offset."),
    ("empty_rows", "zero", "A row without a visible key gives 0, and its lse is minus infinity."),
    ("lse", "natural", "Log-sum-exp is to the base e."),
    ("nan", "propagate", "NaN in, NaN out."),
    ("infinity", "propagate", "Infinities follow IEEE 754."),
    ("rounding", "nearest_even_saturating", "Quantization rounds to nearest even and saturates."),
    ("mx_scale", "ocp_floor", "Scales of MX formats follow the floor rule of the OCP standard."),
    ("nibbles", "low_first", "Of two 4-bit values in a byte, the low one comes first."),
    (
        "random",
        "philox4x32_10",
        "Randomness is counter-based: the same seed and offset give the same result.",
    ),
    ("ties", "lowest_index", "Of equal values, the one with the lowest index wins."),
    ("order", "sequential", "Later writes win."),
];

/// The section `semantics`: behavior in which kernels commonly differ. Keys and values have been validated.
#[derive(Debug, Clone, Default)]
pub struct RawSemantics {
    /// Keys and values, in the order of the file.
    pub entries: Vec<(Spanned<String>, Spanned<String>)>,
}

impl Read for RawSemantics {
    const WHAT: &'static str = "a mapping (`semantics`)";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        let mut read = RawSemantics::default();
        for (key, value) in entries::<Self>(node, sink)? {
            let Some((_, answer, _)) = SEMANTICS.iter().find(|(known, ..)| *known == key.value) else {
                let keys = || SEMANTICS.iter().map(|(known, ..)| *known);
                let near = nearest(&key.value, keys());
                sink.error(
                    Code::UnknownSemantics,
                    key.span,
                    format!("unknown key `{}` in `semantics`", key.value),
                )
                .suggest(near)
                .note(format!("expected one of {}", listed(keys())));
                continue;
            };
            let Some(value) = Spanned::<String>::read(value, sink) else { continue };
            if value.value == *answer {
                read.entries.push((key, value));
            } else {
                let message = format!("`{}: {}` is not a value of `semantics`", key.value, value.value);
                sink.error(Code::SemanticsValue, value.span, message).suggest(Some(*answer));
            }
        }
        Some(read)
    }
}
inline_schema!([] RawSemantics, |_generator| {
    let properties: serde_json::Map<String, serde_json::Value> = SEMANTICS
        .iter()
        .map(|(key, answer, doc)| {
            ((*key).to_owned(), serde_json::json!({ "description": doc, "enum": [answer] }))
        })
        .collect();
    json_schema!({ "type": "object", "additionalProperties": false, "properties": properties })
});
