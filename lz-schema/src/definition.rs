//! Data of the FlashInfer-Bench `Definition` that a schema was imported from.
//!
//! The schema defines axes, arguments and constraints. This section stores their names and order in the `Definition`, and
//! properties that the schema language cannot express. A field that is `None` is derived from the schema. JSON and Python
//! texts are stored verbatim and not interpreted.

/// The element types of a `Definition`: those of the first dialect, then those that the second dialect adds.
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

/// The number of entries of [`DTYPES`] in the first dialect.
pub const FIRST_DIALECT_DTYPES: usize = 11;

/// The section `definition` of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Definition {
    /// Name of the `Definition`.
    pub name: String,
    /// Its compute category.
    pub op_type: String,
    /// Its description.
    pub description: Option<String>,
    /// Its tags.
    pub tags: Option<Vec<String>>,
    /// Its axes, in its order.
    pub axes: Vec<DefinitionAxis>,
    /// Its inputs (tensors and scalars), in its order.
    pub inputs: Vec<DefinitionArgument>,
    /// Its outputs, in its order; may include inputs that are written in place.
    pub outputs: Vec<DefinitionArgument>,
    /// Its constraints as written, in its order.
    pub constraints: Option<Vec<DefinitionConstraint>>,
    /// The Python source of its reference, verbatim.
    pub reference: Option<String>,
    /// The Python source that creates inputs (second dialect).
    pub init: Option<String>,
    /// The Python source that compares outputs (second dialect).
    pub check: Option<String>,
}

/// One axis of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefinitionAxis {
    /// Its name in the `Definition`.
    pub name: String,
    /// The corresponding axis of the schema, by index; `None` if the schema has none.
    pub axis: Option<usize>,
    /// Whether it is constant.
    pub constant: Option<bool>,
    /// The constant.
    pub value: Option<i64>,
    /// Shapes use it, but the `Definition` does not define it. Occurs in the second dialect.
    pub undefined: bool,
    /// Its description.
    pub description: Option<String>,
}

/// The schema item that corresponds to an argument of a `Definition`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stated {
    /// A tensor input, by index.
    Input(usize),
    /// A parameter, by index.
    Param(usize),
    /// An output, by index.
    Output(usize),
}

/// The shape of an argument in a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefinitionShape {
    /// A scalar, not a tensor.
    Scalar,
    /// Names of its axes.
    Axes(Vec<String>),
}

/// One input or output of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefinitionArgument {
    /// Its name in the `Definition`.
    pub name: String,
    /// The corresponding schema item; `None` if the schema has none.
    pub stated: Option<Stated>,
    /// Its shape.
    pub shape: Option<DefinitionShape>,
    /// Its dtype, one of [`DTYPES`].
    pub dtype: Option<String>,
    /// Whether it may be absent.
    pub optional: Option<bool>,
    /// The parameter of the wrapped function that receives it (second dialect).
    pub param: Option<String>,
    /// Its description.
    pub description: Option<String>,
}

/// One constraint of a `Definition`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefinitionConstraint {
    /// The Python expression, verbatim. The corresponding constraint of the schema, if any, has this text as its message.
    pub check: String,
    /// Whether it depends on tensor values, so that no constraint over sizes and parameters can express it.
    pub value_dependent: bool,
}
