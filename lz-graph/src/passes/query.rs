//! Reads calls: functions, params, operands.

use lz_core::expr::Value;
use lz_schema::expr::NodeKind as Expression;
use lz_schema::model::ParamType;

use crate::dim::Dim;
use crate::graph::{Graph, NodeId, Param, View};

/// Whether a node calls the operation with this name.
pub fn calls(graph: &Graph, id: NodeId, operation: &str) -> bool {
    graph.node(id).call().is_some_and(|call| call.operation.name == operation)
}

/// A param as given, or its default if that is a constant.
pub fn param(graph: &Graph, id: NodeId, name: &str) -> Option<Param> {
    let call = graph.node(id).call()?;
    let schema = call.operation.schema();
    let index = schema.params.iter().position(|param| param.name == name)?;
    if let Some(given) = &call.params[index] {
        return Some(given.clone());
    }
    match &schema.params[index].default.as_ref()?.root.kind {
        Expression::Constant(Value::Int(value)) => Some(match schema.params[index].ty {
            ParamType::F32 | ParamType::F64 => Param::Float(*value as f64),
            _ => Param::Int(Dim::from(*value)),
        }),
        Expression::Constant(Value::Float(value)) => Some(Param::Float(*value)),
        Expression::Constant(Value::Bool(value)) => Some(Param::Bool(*value)),
        Expression::Constant(Value::Enum(case)) => Some(Param::Enum(*case)),
        _ => None,
    }
}

/// The case of an enum param.
pub fn case<'g>(graph: &'g Graph, id: NodeId, name: &str) -> Option<&'g str> {
    let Param::Enum(case) = param(graph, id, name)? else { return None };
    let schema = graph.node(id).call()?.operation.schema();
    match &schema.params.iter().find(|param| param.name == name)?.ty {
        ParamType::Enum(cases) => cases.get(case as usize).map(String::as_str),
        _ => None,
    }
}

/// A float param.
pub fn float(graph: &Graph, id: NodeId, name: &str) -> Option<f64> {
    match param(graph, id, name)? {
        Param::Float(value) => Some(value),
        Param::Int(dim) => dim.constant().map(|value| value as f64),
        _ => None,
    }
}

/// A bool param.
pub fn flag(graph: &Graph, id: NodeId, name: &str) -> Option<bool> {
    match param(graph, id, name)? {
        Param::Bool(value) => Some(value),
        _ => None,
    }
}

/// The function and the operand of `primitive.unary` or `primitive.unary_int`.
pub fn unary(graph: &Graph, id: NodeId) -> Option<(&str, NodeId)> {
    if !calls(graph, id, "primitive.unary") && !calls(graph, id, "primitive.unary_int") {
        return None;
    }
    Some((case(graph, id, "function")?, graph.node(id).input(0)?))
}

/// The function and the operands of `primitive.binary` or `primitive.binary_int`.
pub fn binary(graph: &Graph, id: NodeId) -> Option<(&str, NodeId, NodeId)> {
    if !calls(graph, id, "primitive.binary") && !calls(graph, id, "primitive.binary_int") {
        return None;
    }
    let node = graph.node(id);
    Some((case(graph, id, "function")?, node.input(0)?, node.input(1)?))
}

/// The operands of one float or int function.
pub fn binary_of(graph: &Graph, id: NodeId, function: &str) -> Option<(NodeId, NodeId)> {
    binary(graph, id).filter(|(name, ..)| *name == function).map(|(_, a, b)| (a, b))
}

/// A function of a float tensor and a number.
pub struct WithScalar<'g> {
    /// The function.
    pub function: &'g str,
    /// The tensor.
    pub x: NodeId,
    /// The number.
    pub value: f64,
    /// Whether the number is the first operand.
    pub reversed: bool,
}

/// `primitive.binary_scalar`.
pub fn with_scalar(graph: &Graph, id: NodeId) -> Option<WithScalar<'_>> {
    if !calls(graph, id, "primitive.binary_scalar") {
        return None;
    }
    Some(WithScalar {
        function: case(graph, id, "function")?,
        x: graph.node(id).input(0)?,
        value: float(graph, id, "value")?,
        reversed: flag(graph, id, "reversed")?,
    })
}

/// `x * factor` or `x / (1 / factor)`.
pub fn scaled(graph: &Graph, id: NodeId) -> Option<(NodeId, f64)> {
    let with = with_scalar(graph, id)?;
    match with.function {
        "mul" => Some((with.x, with.value)),
        "div" if !with.reversed && with.value != 0.0 => Some((with.x, 1.0 / with.value)),
        _ => None,
    }
}

/// `x + addend`.
pub fn shifted(graph: &Graph, id: NodeId) -> Option<(NodeId, f64)> {
    let with = with_scalar(graph, id)?;
    match with.function {
        "add" => Some((with.x, with.value)),
        "sub" if !with.reversed => Some((with.x, -with.value)),
        _ => None,
    }
}

/// The input of a cast.
pub fn cast(graph: &Graph, id: NodeId) -> Option<NodeId> {
    if calls(graph, id, "primitive.cast") { graph.node(id).input(0) } else { None }
}

/// The input of a view of this kind.
pub fn reshape(graph: &Graph, id: NodeId) -> Option<NodeId> {
    matches!(graph.node(id).view(), Some(View::Reshape)).then(|| graph.node(id).input(0)).flatten()
}

/// The input of an expand.
pub fn expand(graph: &Graph, id: NodeId) -> Option<NodeId> {
    matches!(graph.node(id).view(), Some(View::Expand)).then(|| graph.node(id).input(0)).flatten()
}

/// The input and the order of a permute.
pub fn permute(graph: &Graph, id: NodeId) -> Option<(NodeId, &[usize])> {
    match graph.node(id).view() {
        Some(View::Permute(order)) => Some((graph.node(id).input(0)?, order)),
        _ => None,
    }
}

/// A slice.
pub struct Slice<'g> {
    /// The tensor.
    pub x: NodeId,
    /// The dimension.
    pub axis: usize,
    /// The first element.
    pub start: &'g Dim,
    /// The distance between elements.
    pub step: i64,
}

/// A slice.
pub fn slice(graph: &Graph, id: NodeId) -> Option<Slice<'_>> {
    match graph.node(id).view() {
        Some(View::Slice { axis, start, step }) => {
            Some(Slice { x: graph.node(id).input(0)?, axis: *axis, start, step: *step })
        }
        _ => None,
    }
}

/// The last dimension.
pub fn last(graph: &Graph, id: NodeId) -> Option<&Dim> {
    graph.node(id).shape.last()
}

/// The tensor before dimensions were repeated.
pub fn before_expand(graph: &Graph, mut id: NodeId) -> NodeId {
    while let Some(input) = expand(graph, id) {
        id = input;
    }
    id
}

/// The tensor of one dimension that is repeated over all others: `[n]` expanded to `[..., n]`, leading dimensions of size 1 allowed.
pub fn feature(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let source = before_expand(graph, id);
    let shape = &graph.node(source).shape;
    let (size, leading) = shape.split_last()?;
    if last(graph, id) != Some(size) || !leading.iter().all(|dim| dim.is(1)) {
        return None;
    }
    if leading.is_empty() {
        return Some(source);
    }
    // `[1, 1, n]` made of `[n]`.
    reshape(graph, source).filter(|vector| graph.node(*vector).shape == [size.clone()])
}

/// The value of a tensor whose elements are all the same constant.
pub fn fill(graph: &Graph, id: NodeId) -> Option<f64> {
    let mut source = id;
    while graph.node(source).view().is_some() {
        source = graph.node(source).input(0)?;
    }
    graph.scalar(source)
}

/// Whether the value depends on constants only.
pub fn is_constant(graph: &Graph, mut id: NodeId) -> bool {
    while graph.node(id).view().is_some() {
        match graph.node(id).input(0) {
            Some(input) => id = input,
            None => return false,
        }
    }
    graph.constant(id).is_some()
}
