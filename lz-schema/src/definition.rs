//! What a schema remembers of the FlashInfer-Bench `Definition` that it was imported from.
//!
//! The schema itself states axes, arguments and constraints; this holds the names and order that the `Definition` gave
//! them, and whatever it says that the language cannot. A field that is `None` is answered by the schema.
//! Nothing here knows JSON or Python: the texts are kept as they are.

/// The element types that a `Definition` may name: those of the format, then those that its second dialect adds.
pub const DTYPES: [&str; 17] = [
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float4_e2m1",
    "int64",
    "int32",
    "int16",
    "int8",
    "bool",
    "unknown",
    "uint8",
    "uint32",
    "string",
    "dtype",
    "float64",
];

/// How many of [`DTYPES`] the first dialect knows.
pub const FIRST_DIALECT_DTYPES: usize = 11;

/// The section `definition` of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Definition {
    /// The `Definition`'s own name.
    pub name: String,
    /// Its compute category.
    pub op_type: String,
    /// What it says about itself.
    pub description: Option<String>,
    /// Its tags.
    pub tags: Option<Vec<String>>,
    /// Its axes, in its order.
    pub axes: Vec<DefinitionAxis>,
    /// Its inputs, in its order: tensors and scalars as they come.
    pub inputs: Vec<DefinitionArgument>,
    /// Its outputs, in its order; an input that is changed in place may be among them.
    pub outputs: Vec<DefinitionArgument>,
    /// Its constraints as written, in its order.
    pub constraints: Option<Vec<DefinitionConstraint>>,
    /// The Python text of its reference, letter by letter.
    pub reference: Option<String>,
    /// The Python text that makes inputs (second dialect).
    pub init: Option<String>,
    /// The Python text that compares outputs (second dialect).
    pub check: Option<String>,
}

/// One axis of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefinitionAxis {
    /// Its name there.
    pub name: String,
    /// The axis of the schema (by index) that states it; `None` if only the `Definition` has it.
    pub axis: Option<usize>,
    /// Whether it is constant.
    pub constant: Option<bool>,
    /// The constant.
    pub value: Option<i64>,
    /// Shapes name it, but the `Definition` does not define it, as happens in the second dialect.
    pub undefined: bool,
    /// What it says about itself.
    pub description: Option<String>,
}

/// What of the schema states an argument of a `Definition`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stated {
    /// A tensor input, by index.
    Input(usize),
    /// A parameter, by index.
    Param(usize),
    /// An output, by index.
    Output(usize),
}

/// The shape that a `Definition` gives to an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefinitionShape {
    /// Not a tensor at all.
    Scalar,
    /// Names of its axes.
    Axes(Vec<String>),
}

/// One input or output of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefinitionArgument {
    /// Its name there.
    pub name: String,
    /// What of the schema states it; `None` if only the `Definition` has it.
    pub stated: Option<Stated>,
    /// Its shape.
    pub shape: Option<DefinitionShape>,
    /// Its dtype, one of [`DTYPES`].
    pub dtype: Option<String>,
    /// Whether it may be absent.
    pub optional: Option<bool>,
    /// The argument of the wrapped function that it goes to (second dialect).
    pub param: Option<String>,
    /// What it says about itself.
    pub description: Option<String>,
}

/// One constraint of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefinitionConstraint {
    /// The Python expression as written. If the schema states it too, that constraint has this text as its message.
    pub check: String,
    /// Whether it reads the values of arguments, so that no constraint over sizes and parameters can state it.
    pub value_dependent: bool,
}
