//! The validated operation: all names are resolved, all expressions are typed, all defaults are valid.
//!
//! Only `check` creates these values, so they satisfy the rules of `docs/schema-language.md`. This module does not depend on
//! tensors or generated code.
//!
//! **Slots.** The expressions of an operation share one numbering of variables, [`Operation::slots`]: first all axes, then all
//! params, then one bool per *optional* input (`given(input)`), each in order. `expr::Variable::index` is the slot.

use crate::definition::Definition;
use crate::dtype::DType;
use crate::expr::{Program, Typed, Value};

/// One operation.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Dotted name, `attention.mla.decode`.
    pub name: String,
    /// Contract version.
    pub version: u32,
    /// One sentence.
    pub summary: String,
    /// The formula, in Markdown.
    pub doc: String,
    /// The operation of which this one is a special case. Everything else here is resolved.
    pub specializes: Option<Specialization>,
    /// The operation with the same mathematics on dequantized inputs.
    pub dequantizes: Option<Dequantizes>,
    /// Alternative names and the parameters that they fix.
    pub aliases: Vec<Alias>,
    /// Symbolic dimensions, in order.
    pub axes: Vec<Axis>,
    /// Dtype variables, in order.
    pub types: Vec<TypeVariable>,
    /// Inputs, in call order.
    pub inputs: Vec<Input>,
    /// Scalars and enums, in call order.
    pub params: Vec<Param>,
    /// Outputs, in order.
    pub outputs: Vec<Output>,
    /// Conditions over axes and params.
    pub constraints: Vec<Constraint>,
    /// Behavior in which kernels commonly differ: keys and values from fixed lists.
    pub semantics: Vec<(String, String)>,
    /// How kernels are compared with the reference.
    pub equivalence: Equivalence,
    /// Named shapes of real models.
    pub workloads: Vec<Workload>,
    /// Data of the FlashInfer-Bench `Definition` that the schema was imported from.
    pub definition: Option<Definition>,
    /// SHA-256 of the file's text with normalized line ends, lower-case hex. For a specialization, of its text and the digest
    /// of the general operation.
    pub digest: String,
}

/// The relation of a special operation to its general operation: the same inputs, params and outputs, with equal axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Specialization {
    /// The general operation.
    pub operation: String,
    /// Axes that only the general operation has, each with the axis that it is equal to.
    pub equal: Vec<(String, String)>,
}

/// The relation of a quantized operation to the operation with the same mathematics on dequantized inputs. Its other inputs and its params
/// are those of the same name.
#[derive(Debug, Clone)]
pub struct Dequantizes {
    /// The operation.
    pub operation: String,
    /// The calls that it can compute; `None` means all.
    pub when: Option<Typed>,
    /// Its dequantized inputs.
    pub inputs: Vec<DequantizedInput>,
}

/// An input that the operation `dequantize` makes.
#[derive(Debug, Clone)]
pub struct DequantizedInput {
    /// Its name in the other operation.
    pub name: String,
    /// Arguments of `dequantize`, by name.
    pub arguments: Vec<(String, DequantizeArgument)>,
}

/// An argument of `dequantize`: an item of the quantized operation by index, or a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DequantizeArgument {
    /// An input.
    Input(usize),
    /// A param; the case of an enum is passed by name.
    Param(usize),
    /// The size of an axis.
    Axis(usize),
    /// The name of the dtype of a variable.
    Type(usize),
    /// A case of an enum.
    Case(String),
}

/// An alternative name of an operation.
#[derive(Debug, Clone)]
pub struct Alias {
    /// The alternative name.
    pub name: String,
    /// Parameters (by index) and the value that the alias fixes.
    pub fixes: Vec<(usize, Constant)>,
}

/// A constant in a schema.
#[derive(Debug, Clone, PartialEq)]
pub enum Constant {
    /// Integer.
    Int(i64),
    /// Float.
    Float(f64),
    /// Bool.
    Bool(bool),
    /// Case of an enum, by index.
    Enum(u32),
}

/// One symbolic dimension.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// How selection buckets it.
    pub select: Select,
    /// Sizes that property tests draw.
    pub fuzz: Fuzz,
    /// Values of real models.
    pub models: Vec<i64>,
    /// A fixed size.
    pub value: Option<i64>,
    /// Whether it is a pack of any number of dimensions.
    pub pack: bool,
    /// Whether its size is known only after the call.
    pub dynamic: bool,
    /// One sentence.
    pub doc: String,
    /// The input that binds it; `None` for a fixed or dynamic axis.
    pub bound_by: Option<Binding>,
}

/// The role of a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Role {
    Batch,
    Heads,
    Length,
    Feature,
    Vocab,
    Count,
    Page,
    Block,
}

/// How selection buckets the sizes of an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// Every size is a separate key.
    Exact,
    /// Sizes up to each bound (ascending) share a key.
    Bucket(Vec<i64>),
    /// Not part of the key.
    Ignored,
}

/// Sizes that property tests draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fuzz {
    /// Any size in `lo..=hi`.
    Range(i64, i64),
    /// One of these.
    List(Vec<i64>),
}

/// The dimension of an input that gives an axis its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Index into `inputs`.
    pub input: usize,
    /// The size of the axis is the size of the dimension minus this offset (1 for `batch + 1`).
    pub offset: i64,
}

/// A dtype variable.
#[derive(Debug, Clone)]
pub struct TypeVariable {
    /// Name, `T`.
    pub name: String,
    /// The possible dtypes, in order.
    pub dtypes: Vec<DType>,
    /// The first input (required ones first) that uses it; `None` if only outputs or cases do.
    pub bound_by: Option<usize>,
}

/// The kind of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A tensor.
    Tensor,
    /// A batch of strings.
    Text,
    /// A tokenizer handle.
    Tokenizer,
}

/// One input.
#[derive(Debug, Clone)]
pub struct Input {
    /// Name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Dimensions; empty cases for a tokenizer.
    pub shape: Cases<Vec<Dim>>,
    /// Element type; ignored unless a tensor.
    pub dtype: Cases<DTypeRef>,
    /// May be absent. `Some(slot)` is the slot of its `given(…)` bool.
    pub optional: Option<u16>,
    /// Rank may be lower and dimensions may be 1.
    pub broadcast: bool,
    /// Whether it is written in place.
    pub read_write: bool,
    /// Required contiguity.
    pub contiguous: Contiguous,
    /// Required device.
    pub device: DeviceRule,
    /// A rule for the values of the elements.
    pub values: Option<ValueRule>,
    /// One sentence.
    pub doc: String,
}

/// A property that may depend on an enum parameter.
#[derive(Debug, Clone)]
pub enum Cases<T> {
    /// The same for all.
    One(T),
    /// By parameter (index into `params`), one entry per case in the order of the enum's values.
    By(usize, Vec<T>),
}

impl<T> Cases<T> {
    /// All alternatives.
    pub fn all(&self) -> &[T] {
        match self {
            Cases::One(only) => std::slice::from_ref(only),
            Cases::By(_, cases) => cases,
        }
    }
}

/// One dimension of a shape.
#[derive(Debug, Clone)]
pub enum Dim {
    /// A bare axis, by index.
    Axis(usize),
    /// All dimensions of a pack axis, by index.
    Pack(usize),
    /// A constant size.
    Fixed(i64),
    /// Axis plus a constant (`batch + 1`), which can bind the axis.
    Offset(usize, i64),
    /// Any other int expression.
    Expr(Box<Typed>),
}

/// An element type or a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DTypeRef {
    /// A fixed type.
    Fixed(DType),
    /// A variable, by index.
    Variable(usize),
}

/// Required contiguity of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Contiguous {
    /// Nothing.
    None,
    /// The last dimension has stride 1.
    Last,
    /// Dense row-major.
    All,
}

/// Required device of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceRule {
    /// The same device as the other tensors.
    Same,
    /// Host memory.
    Host,
    /// Anywhere.
    Any,
}

/// A rule for the values of the elements; checking it reads the data.
#[derive(Debug, Clone)]
pub enum ValueRule {
    /// `0 <= v < E`.
    IndexInto(Typed),
    /// `A <= v <= B`.
    Between(Typed, Typed),
    /// Starts at 0, is non-decreasing, ends at E.
    IndptrOf(Typed),
    /// Starts at 0, is non-decreasing, ends at most at E.
    IndptrWithin(Typed),
    /// Non-negative; sums to E along the last dimension.
    PartitionOf(Typed),
    /// The bytes are the text of an expression over an attention score with E parameters.
    ScoreMod(Typed),
}

/// A scalar parameter.
#[derive(Debug, Clone)]
pub struct Param {
    /// Name.
    pub name: String,
    /// Its type.
    pub ty: ParamType,
    /// Its default; a parameter without one is required. Has the type of the parameter (int widened for floats).
    pub default: Option<Typed>,
    /// The range, rewritten as a bool expression over the parameter itself (`eps > 0`); `range_text` is as written.
    pub range: Option<Typed>,
    /// The range as written.
    pub range_text: String,
    /// What it measures, if it is a statistic: a number that affects which kernel is selected and nothing else.
    pub statistic: Option<Statistic>,
    /// One sentence.
    pub doc: String,
}

/// A statistic of an input's values on which the speed of kernels depends. −1 means that it is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistic {
    /// Index into `inputs`.
    pub of: usize,
    /// What it measures.
    pub measure: Measure,
    /// Upper bounds of its buckets, ascending; the first is −1, the bucket of an unknown statistic.
    pub bounds: Vec<i64>,
}

/// What a statistic measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// How often the most frequent value that is not negative occurs.
    MaxCount,
    /// The largest difference of adjacent values of a vector.
    MaxStep,
}

/// The type of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum ParamType {
    /// 64-bit integer.
    Int,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// Bool.
    Bool,
    /// One of these cases.
    Enum(Vec<String>),
}

/// One output.
#[derive(Debug, Clone)]
pub struct Output {
    /// Name.
    pub name: String,
    /// Tensor or text.
    pub kind: Kind,
    /// Dimensions.
    pub shape: Cases<Vec<Dim>>,
    /// Element type.
    pub dtype: Cases<DTypeRef>,
    /// The condition under which it exists, a bool expression.
    pub when: Option<Typed>,
    /// One sentence.
    pub doc: String,
}

impl Output {
    /// Whether its size is known only after the call; then the kernel returns an owned buffer.
    pub fn is_dynamic(&self, operation: &Operation) -> bool {
        self.kind == Kind::Text
            || self.shape.all().iter().flatten().any(|dim| match dim {
                Dim::Axis(axis) | Dim::Pack(axis) | Dim::Offset(axis, _) => operation.axes[*axis].dynamic,
                Dim::Fixed(_) | Dim::Expr(_) => false,
            })
    }
}

/// A condition over axes and params.
#[derive(Debug, Clone)]
pub struct Constraint {
    /// The bool expression that must hold.
    pub check: Typed,
    /// Reason code.
    pub code: String,
    /// Message of a violation.
    pub message: String,
}

/// How kernels are compared with the reference.
#[derive(Debug, Clone, PartialEq)]
pub enum Equivalence {
    /// rtol and atol by dtype of the output.
    Close(Vec<(DType, f64, f64)>),
    /// Bitwise equal.
    Exact,
    /// Support and goodness of fit at this significance.
    Distribution(f64),
}

/// A named shape of a real model.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Name.
    pub name: String,
    /// One entry per axis: sizes (several for a pack, one otherwise); `None` for dynamic axes and axes bound only by absent optional inputs.
    pub axes: Vec<Option<Vec<i64>>>,
    /// One entry per dtype variable; `None` if only absent optional inputs use it.
    pub types: Vec<Option<DType>>,
    /// One entry per param; `None` means the default.
    pub params: Vec<Option<Constant>>,
    /// One entry per input: whether it is passed.
    pub given: Vec<bool>,
}

impl Workload {
    /// One value per expression slot, with defaults; axes bound only by absent inputs are 0. `None` if a value is missing.
    pub fn values(&self, operation: &Operation) -> Option<Vec<Value>> {
        let mut values: Vec<Value> = Vec::new();
        for sizes in &self.axes {
            let product = sizes.as_ref().map_or(Some(0), |sizes| {
                sizes.iter().try_fold(1i64, |product, size| product.checked_mul(*size))
            })?;
            values.push(Value::Int(product));
        }
        let first = values.len();
        for param in &operation.params {
            // Placeholder: a default may use any axis and earlier params.
            values.push(match param.ty {
                ParamType::Int => Value::Int(0),
                ParamType::F32 | ParamType::F64 => Value::Float(0.0),
                ParamType::Bool => Value::Bool(false),
                ParamType::Enum(_) => Value::Enum(0),
            });
        }
        for (input, given) in operation.inputs.iter().zip(&self.given) {
            if input.optional.is_some() {
                values.push(Value::Bool(*given));
            }
        }
        for (position, param) in operation.params.iter().enumerate() {
            let stated = self.params.get(position).and_then(Option::as_ref);
            let value = match (stated, &param.default) {
                (Some(Constant::Int(value)), _) => Value::Int(*value),
                (Some(Constant::Float(value)), _) => Value::Float(*value),
                (Some(Constant::Bool(value)), _) => Value::Bool(*value),
                (Some(Constant::Enum(case)), _) => Value::Enum(*case),
                (None, Some(default)) => Program::compile(default).eval(&values).ok()?,
                (None, None) => return None,
            };
            let value = match (&param.ty, value) {
                (ParamType::F32, Value::Int(value)) => Value::Float(f64::from(value as f32)),
                (ParamType::F32, Value::Float(value)) => Value::Float(f64::from(value as f32)),
                (ParamType::F64, Value::Int(value)) => Value::Float(value as f64),
                (_, value) => value,
            };
            *values.get_mut(first + position)? = value;
        }
        Some(values)
    }
}

/// The item that an expression slot refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Axis, by index (for a pack: the product).
    Axis(usize),
    /// Param, by index.
    Param(usize),
    /// `given(input)`, by input index.
    Given(usize),
}

impl Operation {
    /// The numbering of expression variables.
    pub fn slots(&self) -> Vec<Slot> {
        let given = self.inputs.iter().enumerate().filter(|(_, input)| input.optional.is_some());
        (0..self.axes.len())
            .map(Slot::Axis)
            .chain((0..self.params.len()).map(Slot::Param))
            .chain(given.map(|(index, _)| Slot::Given(index)))
            .collect()
    }

    /// The params that kernels in Python receive: all but the statistics, which stand behind the others.
    pub fn kernel_params(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().take_while(|param| param.statistic.is_none())
    }

    /// The operation's name with underscores instead of dots, for functions and files.
    pub fn flat_name(&self) -> String {
        self.name.replace('.', "_")
    }
}
