//! Reads `ModelProto`: flat except for graphs inside attributes, which have a nesting limit.

use super::model::{
    Attribute, AttributeValue, Function, Graph, GraphValue, MAX_NESTING, MAX_NODES, Model, Node, Size,
    ValueKind,
};
use super::problem::{Malformed, Problem};
use super::tensor::{NamedTensor, read_tensor};
use super::wire::{Chunk, Field};

/// Reads a `ModelProto`.
pub fn read_model(message: Chunk<'_>) -> Result<Model<'_>, Malformed> {
    let mut model = Model::default();
    let mut graph = None;
    let mut limits = Limits::default();
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            7 => graph = Some(field.chunk("graph")?),
            8 => model.opsets.push(read_opset(field.chunk("opset_import")?)?),
            25 => model.functions.push(limits.function(field.chunk("functions")?)?),
            _ => {}
        }
    }
    let missing = Malformed { offset: message.offset, problem: Problem::Missing { field: "graph" } };
    model.graph = limits.graph(graph.ok_or(missing)?)?;
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

/// What was read so far, against the limits.
#[derive(Default)]
struct Limits {
    nodes: usize,
    depth: usize,
}

impl Limits {
    fn graph<'a>(&mut self, message: Chunk<'a>) -> Result<Graph<'a>, Malformed> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            let problem = Problem::TooDeep { limit: MAX_NESTING };
            return Err(Malformed { offset: message.offset, problem });
        }
        let mut graph = Graph::default();
        let mut reader = message.fields();
        while let Some(field) = reader.next_field()? {
            match field.number {
                1 => graph.nodes.push(self.node(field.chunk("node")?)?),
                5 => graph.initializers.push(read_tensor(field.chunk("initializer")?)?),
                11 => graph.inputs.push(read_value(field.chunk("input")?)?),
                12 => graph.outputs.push(read_value(field.chunk("output")?)?),
                15 => graph.sparse_initializers += 1,
                _ => {}
            }
        }
        self.depth -= 1;
        Ok(graph)
    }

    fn function(&mut self, message: Chunk<'_>) -> Result<Function, Malformed> {
        let mut function = Function::default();
        let mut reader = message.fields();
        while let Some(field) = reader.next_field()? {
            match field.number {
                1 => function.name = field.text("name")?,
                4 => function.inputs.push(field.text("input")?),
                5 => function.outputs.push(field.text("output")?),
                7 => function.nodes.push(self.node(field.chunk("node")?)?),
                9 => function.opsets.push(read_opset(field.chunk("opset_import")?)?),
                10 => function.domain = field.text("domain")?,
                11 => function.defaults.push(self.attribute(field.chunk("attribute_proto")?)?),
                13 => function.overload = field.text("overload")?,
                _ => {}
            }
        }
        Ok(function)
    }

    fn node(&mut self, message: Chunk<'_>) -> Result<Node, Malformed> {
        let here = |problem| Malformed { offset: message.offset, problem };
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(here(Problem::TooMany { what: "nodes", limit: MAX_NODES }));
        }
        let mut node = Node::default();
        let mut reader = message.fields();
        while let Some(field) = reader.next_field()? {
            match field.number {
                1 => node.inputs.push(field.text("input")?),
                2 => node.outputs.push(field.text("output")?),
                3 => node.name = field.text("name")?,
                4 => node.op_type = field.text("op_type")?,
                5 => node.attributes.push(self.attribute(field.chunk("attribute")?)?),
                7 => node.domain = field.text("domain")?,
                8 => node.overload = field.text("overload")?,
                _ => {}
            }
        }
        if node.op_type.is_empty() {
            return Err(here(Problem::Missing { field: "op_type" }));
        }
        Ok(node)
    }

    fn attribute(&mut self, message: Chunk<'_>) -> Result<Attribute, Malformed> {
        let mut fields = AttributeFields::default();
        let mut graph = None;
        let mut reader = message.fields();
        while let Some(field) = reader.next_field()? {
            match field.number {
                6 => graph = Some(field.chunk("g")?),
                _ => fields.take(&field)?,
            }
        }
        // The type determines which field counts: a field with its default value may be omitted.
        if fields.code == Some(5) && fields.reference.is_none() {
            let missing = Malformed { offset: message.offset, problem: Problem::Missing { field: "g" } };
            let graph = self.graph(graph.ok_or(missing)?)?.into_owned();
            return Ok(Attribute { name: fields.name, value: AttributeValue::Graph(Box::new(graph)) });
        }
        fields.finish().map_err(|problem| Malformed { offset: message.offset, problem })
    }
}

/// The fields of an `AttributeProto` without graphs.
#[derive(Default)]
struct AttributeFields {
    name: String,
    code: Option<i64>,
    reference: Option<String>,
    float: f32,
    int: i64,
    string: Vec<u8>,
    tensor: Option<NamedTensor<'static>>,
    floats: Vec<f32>,
    ints: Vec<i64>,
    strings: Vec<Vec<u8>>,
}

impl AttributeFields {
    fn take(&mut self, field: &Field<'_>) -> Result<(), Malformed> {
        match field.number {
            1 => self.name = field.text("name")?,
            2 => self.float = field.float("f")?,
            3 => self.int = field.integer("i")?,
            4 => self.string = field.chunk("s")?.bytes.to_vec(),
            5 => self.tensor = Some(read_tensor(field.chunk("t")?)?.into_owned()),
            7 => field.floats_into("floats", &mut self.floats)?,
            8 => field.integers_into("ints", &mut self.ints)?,
            9 => self.strings.push(field.chunk("strings")?.bytes.to_vec()),
            20 => self.code = Some(field.integer("type")?),
            21 => self.reference = Some(field.text("ref_attr_name")?).filter(|name| !name.is_empty()),
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<Attribute, Problem> {
        if let Some(reference) = self.reference {
            return Ok(Attribute { name: self.name, value: AttributeValue::Reference(reference) });
        }
        let code = self.code.ok_or(Problem::Missing { field: "type" })?;
        let value = match code {
            1 => AttributeValue::Float(self.float),
            2 => AttributeValue::Int(self.int),
            3 => AttributeValue::String(self.string),
            4 => AttributeValue::Tensor(self.tensor.ok_or(Problem::Missing { field: "t" })?),
            6 => AttributeValue::Floats(self.floats),
            7 => AttributeValue::Ints(self.ints),
            8 => AttributeValue::Strings(self.strings),
            9..=14 => AttributeValue::Unread { code },
            _ => return Err(Problem::UnknownCode { field: "type", code }),
        };
        Ok(Attribute { name: self.name, value })
    }
}

impl Graph<'_> {
    fn into_owned(self) -> Graph<'static> {
        let initializers = self.initializers.into_iter().map(NamedTensor::into_owned).collect();
        let Graph { nodes, sparse_initializers, inputs, outputs, .. } = self;
        Graph { nodes, initializers, sparse_initializers, inputs, outputs }
    }
}

fn read_value(message: Chunk<'_>) -> Result<GraphValue, Malformed> {
    let mut value =
        GraphValue { name: String::new(), kind: ValueKind::Unknown, element_code: 0, shape: None };
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => value.name = field.text("name")?,
            2 => read_type(field.chunk("type")?, &mut value)?,
            _ => {}
        }
    }
    Ok(value)
}

fn read_type(message: Chunk<'_>, value: &mut GraphValue) -> Result<(), Malformed> {
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => {
                value.kind = ValueKind::Tensor;
                read_tensor_type(field.chunk("tensor_type")?, value)?;
            }
            4 => value.kind = ValueKind::Sequence,
            5 => value.kind = ValueKind::Map,
            8 => value.kind = ValueKind::SparseTensor,
            9 => value.kind = ValueKind::Optional,
            _ => {}
        }
    }
    Ok(())
}

fn read_tensor_type(message: Chunk<'_>, value: &mut GraphValue) -> Result<(), Malformed> {
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => value.element_code = field.integer("elem_type")?,
            2 => {
                let shape = value.shape.insert(Vec::new());
                let mut dims = field.chunk("shape")?.fields();
                while let Some(dim) = dims.next_field()? {
                    if dim.number == 1 {
                        shape.push(read_size(dim.chunk("dim")?)?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn read_size(message: Chunk<'_>) -> Result<Size, Malformed> {
    let mut size = Size::Unknown;
    let mut reader = message.fields();
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => size = Size::Number(field.integer("dim_value")?),
            2 => {
                let name = field.text("dim_param")?;
                size = if name.is_empty() { Size::Unknown } else { Size::Name(name) };
            }
            _ => {}
        }
    }
    Ok(size)
}
