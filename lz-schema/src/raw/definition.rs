//! The section `definition` as it is written, key by key.
//!
//! Its texts come from files of others and must go back as they came, so they are read without trimming.

use super::{Named, Read, mapping};
use crate::diagnostics::Sink;
use crate::source::{Node, Spanned, Value};

type List<T> = Spanned<Vec<T>>;

/// A text that is kept letter by letter; it may be empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verbatim {
    /// The text.
    pub text: String,
    /// Where it was written.
    pub span: crate::source::Span,
}

impl Read for Verbatim {
    const WHAT: &'static str = "a text";

    fn read(node: &Node, sink: &mut Sink) -> Option<Self> {
        match &node.value {
            Value::Scalar(scalar) if !scalar.is_null() => {
                Some(Verbatim { text: scalar.text.clone(), span: node.span })
            }
            _ => {
                super::wrong_form::<Self>(node, sink);
                None
            }
        }
    }
}

impl schemars::JsonSchema for Verbatim {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Verbatim".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

mapping! {
    /// What an imported FlashInfer-Bench `Definition` says beyond the schema.
    RawDefinition("`definition`") {
        /// The `Definition`'s own name.
        required name: Verbatim,
        /// Its compute category.
        required op_type: Verbatim,
        /// What it says about itself.
        optional description: Verbatim,
        /// Its tags.
        optional tags: List<Verbatim>,
        /// Its axes in its order, each with what the schema does not say of it.
        required axes: Named<RawDefinitionAxis>,
        /// Its inputs in its order, each with what the schema does not say of it.
        required inputs: Named<RawDefinitionArgument>,
        /// Its outputs in its order, each with what the schema does not say of it.
        required outputs: Named<RawDefinitionArgument>,
        /// Its constraints as written; those that the schema states too have this text as their message there.
        optional constraints: List<RawDefinitionConstraint>,
        /// The Python text of its reference, letter by letter.
        optional reference: Verbatim,
        /// The Python text that makes inputs.
        optional init: Verbatim,
        /// The Python text that compares outputs.
        optional check: Verbatim,
    }
}

mapping! {
    /// One axis of a `Definition`.
    RawDefinitionAxis("an axis of a definition") {
        /// The axis of the schema that states it, where that has another name.
        optional as_: Spanned<String>,
        /// `const` or `var`.
        optional type_: Spanned<String>,
        /// The constant.
        optional value: Spanned<i64>,
        /// `true`: shapes name it, but the `Definition` does not define it.
        optional undefined: Spanned<bool>,
        /// What it says about itself.
        optional description: Verbatim,
    }
}

mapping! {
    /// One input or output of a `Definition`.
    RawDefinitionArgument("an argument of a definition") {
        /// The input, parameter or output of the schema that states it, where that has another name.
        optional as_: Spanned<String>,
        /// Names of its axes.
        optional shape: List<Verbatim>,
        /// `true`: not a tensor at all.
        optional scalar: Spanned<bool>,
        /// Its dtype as the `Definition` names it.
        optional dtype: Spanned<String>,
        /// Whether it may be absent.
        optional optional: Spanned<bool>,
        /// The argument of the wrapped function that it goes to.
        optional param: Verbatim,
        /// What it says about itself.
        optional description: Verbatim,
    }
}

mapping! {
    /// One constraint of a `Definition`.
    RawDefinitionConstraint("a constraint of a definition") {
        /// The Python expression as written.
        required check: Verbatim,
        /// `true`: it reads the values of arguments.
        optional value_dependent: Spanned<bool>,
    }
}
