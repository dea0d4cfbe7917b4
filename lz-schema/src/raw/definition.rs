//! The parsed form of the section `definition`.
//!
//! Its texts are imported from other files and must be exported unchanged, so they are not trimmed.

use super::{Named, Read, mapping};
use crate::diagnostics::Sink;
use crate::source::{Node, Spanned, Value};

type List<T> = Spanned<Vec<T>>;

/// A verbatim text; may be empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verbatim {
    /// The text.
    pub text: String,
    /// Its span.
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
    /// Data of the FlashInfer-Bench `Definition` that the schema was imported from.
    RawDefinition("`definition`") {
        /// Name of the `Definition`.
        required name: Verbatim,
        /// Its compute category.
        required op_type: Verbatim,
        /// Its description.
        optional description: Verbatim,
        /// Its tags.
        optional tags: List<Verbatim>,
        /// Its axes in its order, each with the properties that the schema does not define.
        required axes: Named<RawDefinitionAxis>,
        /// Its inputs in its order, each with the properties that the schema does not define.
        required inputs: Named<RawDefinitionArgument>,
        /// Its outputs in its order, each with the properties that the schema does not define.
        required outputs: Named<RawDefinitionArgument>,
        /// Its constraints, verbatim; corresponding constraints of the schema have this text as their message.
        optional constraints: List<RawDefinitionConstraint>,
        /// The Python source of its reference, verbatim.
        optional reference: Verbatim,
        /// The Python source that creates inputs.
        optional init: Verbatim,
        /// The Python source that compares outputs.
        optional check: Verbatim,
    }
}

mapping! {
    /// One axis of a `Definition`.
    RawDefinitionAxis("an axis of a definition") {
        /// The corresponding axis of the schema, if its name differs.
        optional as_: Spanned<String>,
        /// `const` or `var`.
        optional type_: Spanned<String>,
        /// The constant.
        optional value: Spanned<i64>,
        /// `true`: shapes use it, but the `Definition` does not define it.
        optional undefined: Spanned<bool>,
        /// Its description.
        optional description: Verbatim,
    }
}

mapping! {
    /// One input or output of a `Definition`.
    RawDefinitionArgument("an argument of a definition") {
        /// The corresponding input, parameter or output of the schema, if its name differs.
        optional as_: Spanned<String>,
        /// Names of its axes.
        optional shape: List<Verbatim>,
        /// `true`: a scalar, not a tensor.
        optional scalar: Spanned<bool>,
        /// Its dtype in the `Definition`.
        optional dtype: Spanned<String>,
        /// Whether it may be absent.
        optional optional: Spanned<bool>,
        /// The parameter of the wrapped function that receives it.
        optional param: Verbatim,
        /// Its description.
        optional description: Verbatim,
    }
}

mapping! {
    /// One constraint of a `Definition`.
    RawDefinitionConstraint("a constraint of a definition") {
        /// The Python expression, verbatim.
        required check: Verbatim,
        /// `true`: it depends on tensor values.
        optional value_dependent: Spanned<bool>,
    }
}
