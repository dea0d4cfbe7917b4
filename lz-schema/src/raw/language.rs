//! The sections of an operation file and of `reasons.yaml`, as described in `docs/schema-language.md`.
//!
//! Editors show these doc comments.

use super::definition::RawDefinition;
use super::{
    CategoryWord, Expression, FieldWord, Named, OneOrMany, RawCases, RawFuzz, RawSelect, RawSemantics,
    mapping,
};
use crate::dtype::DType;
use crate::model::{Contiguous, DeviceRule, Kind, Measure, Role};
use crate::source::{Scalar, Spanned};

type Text = Spanned<String>;
type List<T> = Spanned<Vec<T>>;

/// Access to an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Written in place.
    ReadWrite,
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum TypeWord {
    Int,
    F32,
    F64,
    Bool,
    Enum,
}

mapping! {
    /// The contract of one operation.
    RawOperation("an operation") {
        /// Dotted lower-case name; must match the path of the file.
        required operation: Text,
        /// Contract version, an integer >= 1, incremented by incompatible changes.
        required version: Spanned<i64>,
        /// One sentence.
        required summary: Text,
        /// The exact formula, in Markdown.
        required doc: Text,
        /// Alternative names, each with the parameters it fixes (`{}` for none). Several operations may have the same alias, which then refers to all of them.
        optional aliases: Named<Named<Spanned<Scalar>>>,
        /// The general operation of which this one is a special case, and the axes that are equal.
        optional specializes: RawSpecializes,
        /// The operation with the same mathematics on dequantized inputs.
        optional dequantizes: RawDequantizes,
        /// All symbolic dimensions; of a specialization, other `models`, `fuzz` and `doc` for axes of the general operation.
        inherited axes: Named<RawAxis>,
        /// Dtype variables with their possible dtypes: `T: [f32, f16, bf16]`.
        optional types: Named<List<Spanned<DType>>>,
        /// Inputs, in call order.
        inherited inputs: Named<RawInput>,
        /// Scalars and enums, in call order after the inputs.
        optional params: Named<RawParam>,
        /// Outputs, in call order.
        inherited outputs: Named<RawOutput>,
        /// Conditions on axes and params, each with the reason code of a violation.
        optional constraints: List<RawConstraint>,
        /// Behavior in which kernels commonly differ.
        optional semantics: RawSemantics,
        /// How kernels are compared with the reference: exactly one of the three methods.
        inherited equivalence: RawEquivalence,
        /// Named shapes of real models: a value for every axis and dtype variable, and any params.
        required workloads: Named<RawWorkload>,
        /// Data of the FlashInfer-Bench `Definition` that the schema was imported from.
        optional definition: RawDefinition,
    }
}

mapping! {
    /// The general operation of a specialization, which inherits everything that it does not state.
    RawSpecializes("`specializes`") {
        /// The general operation, which must not be a specialization itself.
        required operation: Text,
        /// The axes that are always equal: `kv_heads: heads` replaces the axis `kv_heads` of the general operation by its axis `heads`.
        required where_: Named<Text>,
    }
}

mapping! {
    /// The operation with the same mathematics on dequantized inputs.
    RawDequantizes("`dequantizes`") {
        /// The operation. Its other inputs and params are those of the same name.
        required operation: Text,
        /// The calls that it can compute: a bool expression over axes, params and `given(input)`; absent means all.
        optional when: Expression,
        /// Its inputs that are dequantized, each with the arguments of `dequantize`: inputs, params, axes and dtype variables of this operation, or cases of an enum.
        required inputs: Named<Named<Text>>,
    }
}

/// A workload: names with values; `given` lists optional inputs.
pub type RawWorkload = Named<OneOrMany>;

mapping! {
    /// One symbolic dimension.
    RawAxis("an axis") {
        /// Role of the dimension, for documentation and tuning.
        optional role: Spanned<Role>,
        /// How selection buckets it: `exact` (the default), `ignored`, or `{ bucket: [ascending upper bounds] }`.
        optional select: RawSelect,
        /// Sizes that property tests draw: `lo..hi` (inclusive) or a list.
        optional fuzz: RawFuzz,
        /// Sizes that real models use.
        optional models: List<Spanned<i64>>,
        /// Fixed size.
        optional value: Spanned<i64>,
        /// A pack of 0 to 5 dimensions, written `rows...` in a shape; in an expression, its value is their product.
        optional pack: Spanned<bool>,
        /// An output axis whose size is known only after the call.
        optional dynamic: Spanned<bool>,
        /// One sentence.
        optional doc: Text,
    }
}

mapping! {
    /// Buckets for selection.
    RawBucket("`select`") {
        /// Ascending upper bounds.
        required bucket: List<Spanned<i64>>,
    }
}

mapping! {
    /// One input.
    RawInput("an input") {
        /// `tensor` (the default), `text` (a batch of strings) or `tokenizer` (a handle).
        optional kind: Spanned<Kind>,
        /// The dimensions: axes, `axis...` for a pack, integers or expressions; or cases chosen by an enum parameter.
        optional shape: RawCases<List<Expression>>,
        /// A dtype, a variable of `types`, or cases chosen by an enum parameter.
        optional dtype: RawCases<Text>,
        /// Whether it may be absent.
        optional optional: Spanned<bool>,
        /// The rank may be lower (dimensions align at the right) and any dimension may be 1.
        optional broadcast: Spanned<bool>,
        /// `read` (the default) or `read_write` (written in place).
        optional access: Spanned<Access>,
        /// Required contiguity: `none` (the default), `last` (last dimension) or `all`.
        optional contiguous: Spanned<Contiguous>,
        /// Required device: `same` as the other tensors (the default), `host` or `any`.
        optional device: Spanned<DeviceRule>,
        /// A rule for the values of the elements; checking it reads the data.
        optional values: RawValues,
        /// One sentence.
        optional doc: Text,
    }
}

mapping! {
    /// A rule for the values of the elements: exactly one of these.
    RawValues("`values`") {
        /// `0 <= v < E`.
        optional index_into: Expression,
        /// `[A, B]`: `A <= v <= B`.
        optional between: List<Expression>,
        /// Starts at 0, is non-decreasing, ends at E.
        optional indptr_of: Expression,
        /// Starts at 0, is non-decreasing, ends at most at E.
        optional indptr_within: Expression,
        /// Non-negative; sums to E along the last dimension.
        optional partition_of: Expression,
        /// Bytes of an expression over an attention score, with E parameters.
        optional score_mod: Expression,
    }
}

mapping! {
    /// One parameter.
    RawParam("a parameter") {
        /// `int` (64 bit), `f32`, `f64`, `bool` or `enum`.
        required type_: Spanned<TypeWord>,
        /// The cases of an enum.
        optional values: List<Text>,
        /// An expression over axes and earlier params; a parameter without a default is required.
        optional default: Expression,
        /// One or two comparisons joined by `and`, without the parameter on the left: `">= 0 and < 1"`.
        optional range: Expression,
        /// Makes an int parameter a statistic of an input's values: it affects only which kernel is selected.
        optional statistic: RawStatistic,
        /// One sentence.
        optional doc: Text,
    }
}

mapping! {
    /// What a statistic measures, and how selection buckets it.
    RawStatistic("a statistic") {
        /// The input whose values it describes.
        required of: Text,
        /// `max_count` (how often the most frequent value that is not negative occurs) or `max_step` (the largest difference of adjacent values).
        required measure: Spanned<Measure>,
        /// Upper bounds of its buckets, ascending; an unknown statistic has a bucket of its own.
        required bucket: List<Spanned<i64>>,
    }
}

mapping! {
    /// One output.
    RawOutput("an output") {
        /// `tensor` (the default) or `text`.
        optional kind: Spanned<Kind>,
        /// The dimensions; may use `dynamic` axes.
        optional shape: RawCases<List<Expression>>,
        /// A dtype, a variable of `types`, or cases chosen by an enum parameter.
        optional dtype: RawCases<Text>,
        /// The condition under which it exists: a bool expression over bool params and `given(input)`.
        optional when: Expression,
        /// One sentence.
        optional doc: Text,
    }
}

mapping! {
    /// One condition.
    RawConstraint("a constraint") {
        /// A bool expression over axes, params and `given(input)`.
        required check: Expression,
        /// A code of `schemas/reasons.yaml`.
        required code: Text,
        /// Message of a violation.
        required message: Text,
    }
}

mapping! {
    /// How kernels are compared with the reference: exactly one of the three methods.
    RawEquivalence("`equivalence`") {
        /// `[rtol, atol]` by the dtype of each output.
        optional close: Named<List<Spanned<f64>>>,
        /// Bitwise equal.
        optional exact: Spanned<bool>,
        /// Support and goodness of fit, for sampling.
        optional distribution: RawDistribution,
    }
}

mapping! {
    /// Comparison of distributions.
    RawDistribution("`distribution`") {
        /// The probability of rejecting a correct implementation.
        required significance: Spanned<f64>,
    }
}

mapping! {
    /// All reasons for which a call is rejected or a kernel is not selected.
    RawReasons("reasons.yaml") {
        /// Version of the list.
        required version: Spanned<i64>,
        /// The codes.
        required reasons: Named<RawReason>,
    }
}

mapping! {
    /// One reason.
    RawReason("a reason") {
        /// Its category.
        required category: Spanned<CategoryWord>,
        /// What happened, one sentence.
        required sentence: Text,
        /// What to do about it, one sentence.
        optional help: Text,
        /// Its fields.
        required fields: List<Spanned<FieldWord>>,
    }
}
