//! The sections of an operation file and of the file of reasons, key by key, as `docs/schema-language.md` describes them.
//!
//! The comments here are what editors show.

use super::definition::RawDefinition;
use super::{
    CategoryWord, Expression, FieldWord, Named, OneOrMany, RawCases, RawFuzz, RawSelect, RawSemantics,
    mapping,
};
use crate::dtype::DType;
use crate::model::{Contiguous, DeviceRule, Kind, Role};
use crate::source::{Scalar, Spanned};

type Text = Spanned<String>;
type List<T> = Spanned<Vec<T>>;

/// Whether an input is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Mutated in place.
    ReadWrite,
}

/// The type of a parameter as written.
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
    /// One operation: what it is, never how it is done.
    RawOperation("an operation") {
        /// Dotted lower-case name; it must agree with the file's path.
        required operation: Text,
        /// Contract version, an integer from 1, moved by an incompatible change.
        required version: Spanned<i64>,
        /// One sentence.
        required summary: Text,
        /// The exact mathematics, in Markdown.
        required doc: Text,
        /// Other names, each with the parameters it fixes (`{}` for none). Several operations may carry the same alias: it then stands for the set.
        optional aliases: Named<Named<Spanned<Scalar>>>,
        /// Every symbolic dimension.
        required axes: Named<RawAxis>,
        /// Dtype variables and what each may be: `T: [f32, f16, bf16]`.
        optional types: Named<List<Spanned<DType>>>,
        /// What the operation takes, in call order.
        required inputs: Named<RawInput>,
        /// Scalars and enums, in call order after the inputs.
        optional params: Named<RawParam>,
        /// What the operation gives.
        required outputs: Named<RawOutput>,
        /// Conditions over axes and params, each with the reason that a violation gives.
        optional constraints: List<RawConstraint>,
        /// Answers to the questions on which kernels differ in silence.
        optional semantics: RawSemantics,
        /// How an implementation is judged against the reference: exactly one of the three.
        required equivalence: RawEquivalence,
        /// Named shapes of real models: a value for every axis and dtype variable, and any params.
        required workloads: Named<RawWorkload>,
        /// What the FlashInfer-Bench `Definition` that this was imported from says beyond the schema.
        optional definition: RawDefinition,
    }
}

/// A workload: every name with its value; `given` lists optional inputs.
pub type RawWorkload = Named<OneOrMany>;

mapping! {
    /// One symbolic dimension.
    RawAxis("an axis") {
        /// What the dimension means, for documentation and tuning.
        optional role: Spanned<Role>,
        /// How selection sees it: `exact` (the default), `ignored`, or `{ bucket: [ascending upper bounds] }`.
        optional select: RawSelect,
        /// What property tests draw: `lo..hi` (inclusive) or a list.
        optional fuzz: RawFuzz,
        /// Sizes that real models use.
        optional models: List<Spanned<i64>>,
        /// A fixed axis: always this size.
        optional value: Spanned<i64>,
        /// Stands for any number of dimensions (0 to 5), written `rows...` in a shape; in an expression it is their product.
        optional pack: Spanned<bool>,
        /// An output axis that is known only after the run.
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
        /// May be absent.
        optional optional: Spanned<bool>,
        /// The rank may be lower (dimensions align at the right) and any dimension may be 1.
        optional broadcast: Spanned<bool>,
        /// `read` (the default) or `read_write` (mutated in place).
        optional access: Spanned<Access>,
        /// What the operation itself demands of strides: `none` (the default), `last` or `all`.
        optional contiguous: Spanned<Contiguous>,
        /// Where it lives: `same` as the others (the default), `host` or `any`.
        optional device: Spanned<DeviceRule>,
        /// A check that must read the data.
        optional values: RawValues,
        /// One sentence.
        optional doc: Text,
    }
}

mapping! {
    /// A check that must read the data: exactly one of these.
    RawValues("`values`") {
        /// `0 <= v < E`.
        optional index_into: Expression,
        /// `[A, B]`: `A <= v <= B`.
        optional between: List<Expression>,
        /// Starts at 0, never falls, ends at E.
        optional indptr_of: Expression,
        /// Never negative; sums along the last dimension to E.
        optional partition_of: Expression,
    }
}

mapping! {
    /// One parameter.
    RawParam("a parameter") {
        /// `int` (64 bit), `f32`, `f64`, `bool` or `enum`.
        required type_: Spanned<TypeWord>,
        /// The cases of an enum.
        optional values: List<Text>,
        /// An expression over axes and earlier params; without one the parameter must be given.
        optional default: Expression,
        /// One or two comparisons joined by `and`, with the parameter on the left left out: `">= 0 and < 1"`.
        optional range: Expression,
        /// One sentence.
        optional doc: Text,
    }
}

mapping! {
    /// One output.
    RawOutput("an output") {
        /// `tensor` (the default) or `text`.
        optional kind: Spanned<Kind>,
        /// The dimensions; they may name `dynamic` axes.
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
        /// What a violation says.
        required message: Text,
    }
}

mapping! {
    /// How an implementation is judged against the reference: exactly one of the three.
    RawEquivalence("`equivalence`") {
        /// `[rtol, atol]` by the dtype of each output.
        optional close: Named<List<Spanned<f64>>>,
        /// Bit for bit.
        optional exact: Spanned<bool>,
        /// Support and goodness of fit, for sampling.
        optional distribution: RawDistribution,
    }
}

mapping! {
    /// Judged by distribution.
    RawDistribution("`distribution`") {
        /// The probability of calling a right implementation wrong.
        required significance: Spanned<f64>,
    }
}

mapping! {
    /// Every reason for which a call is refused or a kernel is not chosen.
    RawReasons("the file of reasons") {
        /// Version of the list.
        required version: Spanned<i64>,
        /// The codes.
        required reasons: Named<RawReason>,
    }
}

mapping! {
    /// One reason.
    RawReason("a reason") {
        /// Which group it belongs to.
        required category: Spanned<CategoryWord>,
        /// What has happened, one sentence.
        required sentence: Text,
        /// What to do about it, one sentence.
        optional help: Text,
        /// What it carries.
        required fields: List<Spanned<FieldWord>>,
    }
}
