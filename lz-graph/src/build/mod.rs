//! Builds graphs: the interface of every front end.
//!
//! Each function appends nodes and returns the last one. Shapes and dtypes are inferred from schemas. [`Builder::call`] calls any
//! operation of the catalog; the other modules have the functions that front ends share, in terms of the primitives.

mod data;
mod math;
mod views;

use std::sync::Arc;

use lz_core::{DType, OperationInfo, Tensor};
use lz_schema::model::ParamType;

use crate::catalog;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{
    Call, Constant, ConstantData, Graph, InputInfo, Node, NodeId, NodeKind, Origin, OutputInfo, Param,
};
use crate::infer;

/// A param of a call by name; enums by the schema's spelling of the case.
#[derive(Debug, Clone)]
pub enum ParamValue<'a> {
    /// Int.
    Int(Dim),
    /// Float.
    Float(f64),
    /// Bool.
    Bool(bool),
    /// Case of an enum.
    Case(&'a str),
}

impl From<i64> for ParamValue<'_> {
    fn from(value: i64) -> Self {
        ParamValue::Int(Dim::from(value))
    }
}

impl From<Dim> for ParamValue<'_> {
    fn from(value: Dim) -> Self {
        ParamValue::Int(value)
    }
}

impl From<f64> for ParamValue<'_> {
    fn from(value: f64) -> Self {
        ParamValue::Float(value)
    }
}

impl From<bool> for ParamValue<'_> {
    fn from(value: bool) -> Self {
        ParamValue::Bool(value)
    }
}

impl<'a> From<&'a str> for ParamValue<'a> {
    fn from(value: &'a str) -> Self {
        ParamValue::Case(value)
    }
}

/// A graph under construction.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    origin: Arc<Origin>,
}

impl Builder {
    /// An empty graph.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Continues an existing graph (a pass).
    pub fn continuing(graph: Graph) -> Builder {
        Builder { graph, origin: Arc::default() }
    }

    /// What was built so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What was built so far, to add symbols and checks.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Names the source of the nodes that follow.
    pub fn at(&mut self, origin: Origin) {
        self.origin = Arc::new(origin);
    }

    /// The source of the nodes that follow.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Takes over the source of another node.
    pub fn at_node(&mut self, id: NodeId) {
        self.origin = self.graph.node(id).origin.clone();
    }

    /// The graph, in topological order and without unused nodes.
    pub fn finish(mut self) -> Result<Graph, GraphError> {
        self.graph.normalize()?;
        Ok(self.graph)
    }

    /// The graph as it is.
    pub fn into_graph(self) -> Graph {
        self.graph
    }

    /// The shape of a node.
    pub fn shape(&self, id: NodeId) -> &[Dim] {
        &self.graph.node(id).shape
    }

    /// The dtype of a node.
    pub fn dtype(&self, id: NodeId) -> DType {
        self.graph.node(id).dtype
    }

    /// The number of dimensions of a node.
    pub fn rank(&self, id: NodeId) -> usize {
        self.graph.node(id).rank()
    }

    /// An error at the current origin.
    pub fn error(&self, message: impl Into<String>) -> GraphError {
        GraphError::import(&self.origin, message)
    }

    pub(crate) fn push(
        &mut self,
        kind: NodeKind,
        inputs: &[NodeId],
        shape: Vec<Dim>,
        dtype: DType,
    ) -> NodeId {
        let inputs = inputs.iter().copied().map(Some).collect();
        self.graph.push(Node { kind, inputs, shape, dtype, origin: self.origin.clone() })
    }

    /// An input of the graph.
    pub fn input(&mut self, name: &str, shape: Vec<Dim>, dtype: DType) -> NodeId {
        let node = self.push(NodeKind::Input(self.graph.inputs.len()), &[], shape, dtype);
        self.graph.inputs.push(InputInfo { name: name.to_owned(), node, mutable: false });
        node
    }

    /// An input that the graph may change in place.
    pub fn mutable_input(&mut self, name: &str, shape: Vec<Dim>, dtype: DType) -> NodeId {
        let node = self.input(name, shape, dtype);
        if let Some(input) = self.graph.inputs.last_mut() {
            input.mutable = true;
        }
        node
    }

    /// An output of the graph.
    pub fn output(&mut self, name: &str, node: NodeId) {
        self.graph.outputs.push(OutputInfo { name: name.to_owned(), node });
    }

    /// A constant.
    pub fn constant(&mut self, name: &str, data: ConstantData) -> NodeId {
        let constant = Constant { name: name.to_owned(), data };
        let view = constant.view();
        let shape = view.shape().iter().map(|&size| Dim::from(size)).collect();
        let dtype = view.dtype();
        self.graph.constants.push(constant);
        self.push(NodeKind::Constant(self.graph.constants.len() - 1), &[], shape, dtype)
    }

    /// A constant in memory of its own.
    pub fn owned(&mut self, tensor: Tensor) -> NodeId {
        self.constant("", ConstantData::Owned(Arc::new(tensor)))
    }

    /// A constant without dimensions.
    pub fn scalar(&mut self, value: f64, dtype: DType) -> Result<NodeId, GraphError> {
        let mut tensor = Tensor::zeros(&[], dtype).map_err(|reason| self.error(reason.to_string()))?;
        tensor.view_mut().set(&[], value);
        Ok(self.owned(tensor))
    }

    /// An int64 constant without dimensions.
    pub fn int_scalar(&mut self, value: i64) -> Result<NodeId, GraphError> {
        let tensor = Tensor::from_slice(&[value], &[]).map_err(|reason| self.error(reason.to_string()))?;
        Ok(self.owned(tensor))
    }

    /// Sizes as an int64 tensor: one dimension, or none if `scalar`.
    pub fn sizes(&mut self, dims: Vec<Dim>, scalar: bool) -> NodeId {
        let shape = if scalar { Vec::new() } else { vec![Dim::from(dims.len() as i64)] };
        self.push(NodeKind::Sizes(dims), &[], shape, DType::I64)
    }

    /// A call by the operation's name. Inputs by position (trailing ones may be left out), params by name.
    pub fn call(
        &mut self,
        operation: &str,
        inputs: &[Option<NodeId>],
        params: &[(&str, ParamValue<'_>)],
    ) -> Result<NodeId, GraphError> {
        let Some(operation) = catalog::find(operation) else {
            return Err(self.error(format!("there is no operation `{operation}`")));
        };
        self.call_operation(operation, inputs, params)
    }

    /// A call of an operation; the node is its first output, see [`Builder::projection`] for the others.
    pub fn call_operation(
        &mut self,
        operation: &'static OperationInfo,
        inputs: &[Option<NodeId>],
        params: &[(&str, ParamValue<'_>)],
    ) -> Result<NodeId, GraphError> {
        let schema = operation.schema();
        let mut filled: Vec<Option<Param>> = vec![None; schema.params.len()];
        for (name, given) in params {
            let Some(index) = schema.params.iter().position(|param| param.name == *name) else {
                return Err(self.error(format!("{} has no param `{name}`", operation.name)));
            };
            let param = match (given, &schema.params[index].ty) {
                (ParamValue::Int(dim), ParamType::F32 | ParamType::F64) if dim.constant().is_some() => {
                    Param::Float(dim.constant().unwrap_or_default() as f64)
                }
                (ParamValue::Int(dim), _) => Param::Int(dim.clone()),
                (ParamValue::Float(value), _) => Param::Float(*value),
                (ParamValue::Bool(value), _) => Param::Bool(*value),
                (ParamValue::Case(case), ParamType::Enum(cases)) => {
                    match cases.iter().position(|known| known == case) {
                        Some(case) => Param::Enum(case as u32),
                        None => {
                            let known = cases.join(", ");
                            let problem =
                                format!("{}: {name} is `{case}`, expected one of {known}", operation.name);
                            return Err(self.error(problem));
                        }
                    }
                }
                (ParamValue::Case(case), _) => {
                    return Err(self.error(format!("{}: {name} is no enum, found `{case}`", operation.name)));
                }
            };
            filled[index] = Some(param);
        }
        let mut all = inputs.to_vec();
        all.resize(schema.inputs.len().max(inputs.len()), None);
        self.call_with(Call { operation, params: filled }, all)
    }

    /// A call with all inputs and params in the schema's order.
    pub fn call_with(&mut self, call: Call, inputs: Vec<Option<NodeId>>) -> Result<NodeId, GraphError> {
        let types = self.infer(&call, &inputs)?;
        // An operation without outputs (`kv.append`) has a result without elements.
        let (shape, dtype) = types.into_iter().flatten().next().unwrap_or((vec![Dim::from(0)], DType::U8));
        let origin = self.origin.clone();
        Ok(self.graph.push(Node { kind: NodeKind::Call(call), inputs, shape, dtype, origin }))
    }

    fn infer(
        &mut self,
        call: &Call,
        inputs: &[Option<NodeId>],
    ) -> Result<Vec<Option<infer::Type>>, GraphError> {
        let types: Vec<Option<infer::Type>> = inputs
            .iter()
            .map(|input| input.map(|id| (self.graph.node(id).shape.clone(), self.graph.node(id).dtype)))
            .collect();
        infer::outputs(call.operation.schema(), &types, &call.params, &mut self.graph.checks).map_err(
            |reasons| GraphError::Call {
                operation: call.operation.name.to_string(),
                origin: self.origin.clone(),
                reasons,
            },
        )
    }

    /// Another output of a call, by index into the operation's outputs.
    pub fn projection(&mut self, call: NodeId, output: usize) -> Result<NodeId, GraphError> {
        let node = self.graph.node(call).clone();
        let Some(about) = node.call() else {
            return Err(self.error(format!("{call} is no call")));
        };
        let types = self.infer(about, &node.inputs)?;
        match types.into_iter().nth(output).flatten() {
            Some((shape, dtype)) => Ok(self.push(NodeKind::Projection(output), &[call], shape, dtype)),
            None => Err(self.error(format!("{} has no output {output} here", about.operation.name))),
        }
    }

    /// An input of a call after the call changed it in place.
    pub fn written(&mut self, call: NodeId, input: usize) -> Result<NodeId, GraphError> {
        let Some(before) = self.graph.node(call).input(input) else {
            return Err(self.error(format!("{call} has no input {input}")));
        };
        let (shape, dtype) = (self.shape(before).to_vec(), self.dtype(before));
        Ok(self.push(NodeKind::Written(input), &[call], shape, dtype))
    }
}
