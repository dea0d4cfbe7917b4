//! A minimal protobuf writer, and the messages of ONNX that tests need.

/// A message.
#[derive(Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub fn int(mut self, number: u32, value: i64) -> Self {
        self.varint(u64::from(number << 3));
        self.varint(value as u64);
        self
    }

    pub fn bytes(mut self, number: u32, bytes: &[u8]) -> Self {
        self.varint(u64::from(number << 3 | 2));
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub fn text(self, number: u32, text: &str) -> Self {
        self.bytes(number, text.as_bytes())
    }

    pub fn nested(self, number: u32, message: Message) -> Self {
        self.bytes(number, &message.0)
    }

    pub fn all(self, number: u32, messages: impl IntoIterator<Item = Message>) -> Self {
        messages.into_iter().fold(self, |message, nested| message.nested(number, nested))
    }
}

pub fn message() -> Message {
    Message::default()
}

/// A node: operator, inputs and outputs, separated by spaces; `-` is an omitted input.
pub fn node(operator: &str, inputs: &str, outputs: &str) -> Message {
    let name = |name: &str| if name == "-" { String::new() } else { name.to_owned() };
    let mut node = inputs.split_whitespace().fold(message(), |node, input| node.text(1, &name(input)));
    node = outputs.split_whitespace().fold(node, |node, output| node.text(2, output));
    node.text(4, operator)
}

pub fn int(name: &str, value: i64) -> Message {
    message().text(1, name).int(3, value).int(20, 2)
}

pub fn ints(name: &str, values: &[i64]) -> Message {
    values.iter().fold(message().text(1, name), |attribute, value| attribute.int(8, *value)).int(20, 7)
}

pub fn graph_attribute(name: &str, graph: Message) -> Message {
    message().text(1, name).nested(6, graph).int(20, 5)
}

/// An attribute of the function's call.
pub fn reference(name: &str, of: &str) -> Message {
    message().text(1, name).text(21, of).int(20, 2)
}

/// The type of a value: dimensions are numbers, names, or `?`.
pub fn value(name: &str, code: i64, dims: &str) -> Message {
    let dim = |dim: &str| match (dim.parse::<i64>(), dim) {
        (Ok(number), _) => message().int(1, number),
        (_, "?") => message(),
        (_, name) => message().text(2, name),
    };
    let shape = message().all(1, dims.split_whitespace().map(dim));
    let tensor = message().int(1, code).nested(2, shape);
    message().text(1, name).nested(2, message().nested(1, tensor))
}

pub fn int_tensor(name: &str, shape: &[i64], values: &[i64]) -> Message {
    let tensor = shape.iter().fold(message(), |tensor, size| tensor.int(1, *size)).int(2, 7);
    values.iter().fold(tensor, |tensor, value| tensor.int(7, *value)).text(8, name)
}

pub fn float_tensor(name: &str, shape: &[i64], values: &[f32]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    shape.iter().fold(message(), |tensor, size| tensor.int(1, *size)).int(2, 1).text(8, name).bytes(9, &bytes)
}

/// A graph of nodes, constants, inputs and outputs.
pub fn graph(
    nodes: Vec<Message>,
    constants: Vec<Message>,
    inputs: Vec<Message>,
    outputs: Vec<Message>,
) -> Message {
    message().all(1, nodes).all(5, constants).all(11, inputs).all(12, outputs)
}

pub fn opset(domain: &str, version: i64) -> Message {
    message().text(1, domain).int(2, version)
}

pub fn model(version: i64, graph: Message) -> Message {
    message().int(1, 10).nested(8, opset("", version)).nested(7, graph)
}
