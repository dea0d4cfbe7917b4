//! ONNX `ModelProto`, as far as single-node models need it: opsets, nodes with attributes, initializers, and
//! the names and kinds of graph inputs and outputs. Subgraphs and local functions are detected, not read.

use crate::error::{Malformed, Problem};
use crate::tensor::{NamedTensor, read_tensor};
use crate::wire::Chunk;

/// A model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Imported opsets: domain (empty for the default one) and version.
    pub opsets: Vec<(String, i64)>,
    /// The nodes of the graph, in order.
    pub nodes: Vec<Node>,
    /// The constants of the graph.
    pub initializers: Vec<NamedTensor>,
    /// Graph inputs, in order.
    pub inputs: Vec<GraphValue>,
    /// Graph outputs, in order.
    pub outputs: Vec<GraphValue>,
    /// Number of local functions.
    pub function_count: usize,
}

/// An input or output of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphValue {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ValueKind,
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
    /// The operator, such as `Attention`.
    pub op_type: String,
    /// The operator's domain; empty for the default one.
    pub domain: String,
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
    Tensor(NamedTensor),
    /// A list of floats.
    Floats(Vec<f32>),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of strings.
    Strings(Vec<Vec<u8>>),
    /// A subgraph, a type, a sparse tensor or a list of tensors: detected, not read.
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

impl Model {
    /// The version of an imported opset; the default domain has two spellings.
    pub fn opset_version(&self, domain: &str) -> Option<i64> {
        let spelling = |name: &str| if name == "ai.onnx" { String::new() } else { name.to_owned() };
        let expected = spelling(domain);
        self.opsets.iter().find(|(name, _)| spelling(name) == expected).map(|&(_, version)| version)
    }
}

/// Reads a `ModelProto`.
pub fn read_model(message: Chunk<'_>) -> Result<Model, Malformed> {
    let mut model = Model::default();
    let mut graph = None;
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            7 => graph = Some(field.chunk("graph")?),
            8 => model.opsets.push(read_opset(field.chunk("opset_import")?)?),
            25 => model.function_count += 1,
            _ => {}
        }
    }
    let missing = Malformed { offset: message.offset, problem: Problem::Missing { field: "graph" } };
    read_graph(graph.ok_or(missing)?, &mut model)?;
    Ok(model)
}

fn read_opset(message: Chunk<'_>) -> Result<(String, i64), Malformed> {
    let (mut domain, mut version) = (String::new(), 0);
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => domain = field.text("domain")?,
            2 => version = field.integer("version")?,
            _ => {}
        }
    }
    Ok((domain, version))
}

fn read_graph(message: Chunk<'_>, model: &mut Model) -> Result<(), Malformed> {
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => model.nodes.push(read_node(field.chunk("node")?)?),
            5 => model.initializers.push(read_tensor(field.chunk("initializer")?)?),
            11 => model.inputs.push(read_value(field.chunk("input")?)?),
            12 => model.outputs.push(read_value(field.chunk("output")?)?),
            _ => {}
        }
    }
    Ok(())
}

fn read_value(message: Chunk<'_>) -> Result<GraphValue, Malformed> {
    let mut value = GraphValue { name: String::new(), kind: ValueKind::Unknown };
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => value.name = field.text("name")?,
            2 => value.kind = read_kind(field.chunk("type")?)?,
            _ => {}
        }
    }
    Ok(value)
}

fn read_kind(message: Chunk<'_>) -> Result<ValueKind, Malformed> {
    let mut kind = ValueKind::Unknown;
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => kind = ValueKind::Tensor,
            4 => kind = ValueKind::Sequence,
            5 => kind = ValueKind::Map,
            8 => kind = ValueKind::SparseTensor,
            9 => kind = ValueKind::Optional,
            _ => {}
        }
    }
    Ok(kind)
}

fn read_node(message: Chunk<'_>) -> Result<Node, Malformed> {
    let mut node = Node::default();
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => node.inputs.push(field.text("input")?),
            2 => node.outputs.push(field.text("output")?),
            4 => node.op_type = field.text("op_type")?,
            5 => node.attributes.push(read_attribute(field.chunk("attribute")?)?),
            7 => node.domain = field.text("domain")?,
            _ => {}
        }
    }
    if node.op_type.is_empty() {
        let problem = Problem::Missing { field: "op_type" };
        return Err(Malformed { offset: message.offset, problem });
    }
    Ok(node)
}

fn read_attribute(message: Chunk<'_>) -> Result<Attribute, Malformed> {
    let mut name = String::new();
    let mut code = None;
    let (mut float, mut int, mut string, mut tensor) = (0.0, 0, Vec::new(), None);
    let (mut floats, mut ints, mut strings) = (Vec::new(), Vec::new(), Vec::new());
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => name = field.text("name")?,
            2 => float = field.float("f")?,
            3 => int = field.integer("i")?,
            4 => string = field.chunk("s")?.bytes.to_vec(),
            5 => tensor = Some(read_tensor(field.chunk("t")?)?),
            7 => field.floats_into("floats", &mut floats)?,
            8 => field.integers_into("ints", &mut ints)?,
            9 => strings.push(field.chunk("strings")?.bytes.to_vec()),
            20 => code = Some(field.integer("type")?),
            _ => {}
        }
    }
    let here = |problem| Malformed { offset: message.offset, problem };
    // The type determines which field counts: a field with its default value may be omitted.
    let code = code.ok_or_else(|| here(Problem::Missing { field: "type" }))?;
    let value = match code {
        1 => AttributeValue::Float(float),
        2 => AttributeValue::Int(int),
        3 => AttributeValue::String(string),
        4 => AttributeValue::Tensor(tensor.ok_or_else(|| here(Problem::Missing { field: "t" }))?),
        6 => AttributeValue::Floats(floats),
        7 => AttributeValue::Ints(ints),
        8 => AttributeValue::Strings(strings),
        5 | 9..=14 => AttributeValue::Unread { code },
        _ => return Err(here(Problem::UnknownCode { field: "type", code })),
    };
    Ok(Attribute { name, value })
}
