//! ONNX `ModelProto`: opsets, graphs with nodes, initializers, typed inputs and outputs, and local functions.
//!
//! Only initializers borrow from the file.

use super::tensor::{DataType, NamedTensor};

/// Nesting limit of graphs inside attributes.
pub const MAX_NESTING: usize = 16;

/// Limit of the number of nodes of a file, in all its graphs and functions.
pub const MAX_NODES: usize = 1_000_000;

/// A model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model<'a> {
    /// Imported opsets: domain (empty for the default one) and version.
    pub opsets: Vec<(String, i64)>,
    /// The graph.
    pub graph: Graph<'a>,
    /// Local functions.
    pub functions: Vec<Function>,
}

/// A graph: the model's, or one of an attribute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph<'a> {
    /// The nodes, in order.
    pub nodes: Vec<Node>,
    /// The constants.
    pub initializers: Vec<NamedTensor<'a>>,
    /// Number of sparse constants, which are not read.
    pub sparse_initializers: usize,
    /// Inputs, in order.
    pub inputs: Vec<GraphValue>,
    /// Outputs, in order.
    pub outputs: Vec<GraphValue>,
}

/// A local function: an operator that is defined by nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// The operator that it defines.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// Distinguishes functions of one name.
    pub overload: String,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Attributes with defaults.
    pub defaults: Vec<Attribute>,
    /// The opsets of its nodes.
    pub opsets: Vec<(String, i64)>,
    /// The nodes, in order.
    pub nodes: Vec<Node>,
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphValue {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ValueKind,
    /// The element type of a tensor, as ONNX codes it; 0 if not given.
    pub element_code: i64,
    /// The dimensions of a tensor; `None` if not even their number is known.
    pub shape: Option<Vec<Size>>,
}

/// A dimension of a graph value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// A number.
    Number(i64),
    /// A name: the same name is the same size everywhere in the model.
    Name(String),
    /// Unknown.
    Unknown,
}

impl GraphValue {
    /// The element type of a tensor.
    pub fn data_type(&self) -> Option<DataType> {
        DataType::from_code(self.element_code)
    }
}

/// Kind of a graph value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A dense tensor.
    Tensor,
    /// A sequence of values.
    Sequence,
    /// A map.
    Map,
    /// A sparse tensor.
    SparseTensor,
    /// An optional value.
    Optional,
    /// Not specified, or newer than this reader.
    Unknown,
}

/// A node: one operator call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its name; often empty.
    pub name: String,
    /// The operator, such as `Attention`.
    pub op_type: String,
    /// The operator's domain; empty for the default one.
    pub domain: String,
    /// Which local function of this name is called.
    pub overload: String,
    /// Names of the inputs; an empty name is an omitted optional input.
    pub inputs: Vec<String>,
    /// Names of the outputs; an empty name is an omitted optional output.
    pub outputs: Vec<String>,
    /// The given attributes, in order.
    pub attributes: Vec<Attribute>,
}

/// An attribute of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A float.
    Float(f32),
    /// An integer.
    Int(i64),
    /// A string, not necessarily UTF-8.
    String(Vec<u8>),
    /// A tensor.
    Tensor(NamedTensor<'static>),
    /// A list of floats.
    Floats(Vec<f32>),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of strings.
    Strings(Vec<Vec<u8>>),
    /// A graph.
    Graph(Box<Graph<'static>>),
    /// The attribute of this name of the function that contains the node.
    Reference(String),
    /// A type, a sparse tensor, or a list of graphs or tensors: detected, not read.
    Unread {
        /// The code of `AttributeProto.AttributeType`.
        code: i64,
    },
}

impl Node {
    /// The value of an attribute, if given.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }
}

impl AttributeValue {
    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        if let Self::Int(value) = self { Some(*value) } else { None }
    }

    /// The float, if it is one.
    pub fn as_float(&self) -> Option<f32> {
        if let Self::Float(value) = self { Some(*value) } else { None }
    }

    /// The text, if it is a UTF-8 string.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::String(value) = self { std::str::from_utf8(value).ok() } else { None }
    }

    /// The integers, if it is a list of integers.
    pub fn as_ints(&self) -> Option<&[i64]> {
        if let Self::Ints(values) = self { Some(values) } else { None }
    }
}

impl Model<'_> {
    /// The version of an imported opset; the default domain has two spellings.
    pub fn opset_version(&self, domain: &str) -> Option<i64> {
        opset_version(&self.opsets, domain)
    }
}

/// The version of a domain; the default domain has two spellings.
pub fn opset_version(opsets: &[(String, i64)], domain: &str) -> Option<i64> {
    let expected = domain_name(domain);
    opsets.iter().find(|(name, _)| domain_name(name) == expected).map(|&(_, version)| version)
}

/// A domain in its short spelling.
pub fn domain_name(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}
