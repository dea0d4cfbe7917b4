//! The graph as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use lz_core::DType;
use serde::{Deserialize, Serialize};

use super::dims::{DimRecord, from_dim, from_dims, to_dim, to_dims};
use crate::catalog;
use crate::graph::{
    Call, Constant, Graph, InputInfo, Node, NodeId, NodeKind, Origin, OutputInfo, Param, SizeCheck,
    SymbolInfo, View,
};

/// Everything but the elements of constants.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRecord {
    /// The release that wrote it.
    pub layerzero: String,
    pub imported_nodes: usize,
    pub rewrites: Vec<String>,
    /// The digest of the schema of every operation that is called.
    pub operations: BTreeMap<String, String>,
    pub symbols: Vec<(String, i64, i64)>,
    pub origins: Vec<(String, String, String)>,
    pub nodes: Vec<NodeRecord>,
    /// Name, node, and whether the graph writes to it.
    pub inputs: Vec<(String, u32, bool)>,
    pub outputs: Vec<(String, u32)>,
    pub constants: Vec<ConstantRecord>,
    pub checks: Vec<(DimRecord, DimRecord, String)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    kind: KindRecord,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<Option<u32>>,
    shape: Vec<DimRecord>,
    dtype: DType,
    origin: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindRecord {
    Input(usize),
    Constant(usize),
    Sizes(Vec<DimRecord>),
    Call { operation: String, params: Vec<Option<ParamRecord>> },
    Projection(usize),
    Written(usize),
    Reshape,
    Expand,
    Permute(Vec<usize>),
    Slice { axis: usize, start: DimRecord, step: i64 },
    Concat(usize),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ParamRecord {
    Int(DimRecord),
    /// As text: exact, and JSON has no infinities.
    Float(String),
    Bool(bool),
    Enum(u32),
}

/// A constant: the tensor of the file that has its elements.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConstantRecord {
    pub name: String,
    pub tensor: String,
    pub dtype: DType,
    /// Dimension `i` of the tensor is dimension `order[i]` of the constant; row-major if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<usize>>,
    pub sha256: String,
}

impl GraphRecord {
    /// The record of a normalized graph.
    pub fn new(
        graph: &Graph,
        constants: Vec<ConstantRecord>,
        imported_nodes: usize,
        rewrites: &[String],
    ) -> GraphRecord {
        let mut origins: Vec<(String, String, String)> = Vec::new();
        let mut operations = BTreeMap::new();
        let mut nodes = Vec::with_capacity(graph.nodes.len());
        let mut last: Option<&Arc<Origin>> = None;
        for node in &graph.nodes {
            if last.is_none_or(|last| **last != *node.origin) {
                let Origin { name, operator, source } = &*node.origin;
                origins.push((name.clone(), operator.clone(), source.clone()));
                last = Some(&node.origin);
            }
            if let Some(call) = node.call() {
                operations.insert(call.operation.name.to_string(), call.operation.digest.to_string());
            }
            nodes.push(NodeRecord::new(node, origins.len() as u32 - 1));
        }
        let symbols = graph.symbols.iter().map(|symbol| (symbol.name.clone(), symbol.min, symbol.max));
        let inputs = graph.inputs.iter().map(|input| (input.name.clone(), input.node.0, input.mutable));
        let outputs = graph.outputs.iter().map(|output| (output.name.clone(), output.node.0));
        let checks = graph.checks.iter();
        GraphRecord {
            layerzero: env!("CARGO_PKG_VERSION").to_owned(),
            imported_nodes,
            rewrites: rewrites.to_vec(),
            operations,
            symbols: symbols.collect(),
            origins,
            nodes,
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            constants,
            checks: checks
                .map(|check| (from_dim(&check.left), from_dim(&check.right), check.because.clone()))
                .collect(),
        }
    }

    /// Operations that this process does not have, or has with another schema.
    pub fn check_operations(&self) -> Result<(), String> {
        for (name, digest) in &self.operations {
            match catalog::find(name) {
                None => {
                    return Err(format!("it calls the operation `{name}`, which this release does not have"));
                }
                Some(known) if known.digest != digest.as_str() => {
                    return Err(format!("the operation `{name}` has another schema in this release"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The graph, not validated.
    pub fn graph(&self, constants: Vec<Constant>) -> Result<Graph, String> {
        let symbols = self.symbols.len();
        let origins: Vec<Arc<Origin>> = self
            .origins
            .iter()
            .map(|(name, operator, source)| {
                let (name, operator, source) = (name.clone(), operator.clone(), source.clone());
                Arc::new(Origin { name, operator, source })
            })
            .collect();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for record in &self.nodes {
            nodes.push(record.node(symbols, &origins)?);
        }
        let checks = self.checks.iter().map(|(left, right, because)| {
            Ok(SizeCheck {
                left: to_dim(left, symbols)?,
                right: to_dim(right, symbols)?,
                because: because.clone(),
            })
        });
        let symbol =
            |(name, min, max): &(String, i64, i64)| SymbolInfo { name: name.clone(), min: *min, max: *max };
        let input = |(name, node, mutable): &(String, u32, bool)| InputInfo {
            name: name.clone(),
            node: NodeId(*node),
            mutable: *mutable,
        };
        let output = |(name, node): &(String, u32)| OutputInfo { name: name.clone(), node: NodeId(*node) };
        Ok(Graph {
            symbols: self.symbols.iter().map(symbol).collect(),
            nodes,
            inputs: self.inputs.iter().map(input).collect(),
            outputs: self.outputs.iter().map(output).collect(),
            constants,
            checks: checks.collect::<Result<_, String>>()?,
        })
    }
}

impl NodeRecord {
    fn new(node: &Node, origin: u32) -> NodeRecord {
        let kind = match &node.kind {
            NodeKind::Input(index) => KindRecord::Input(*index),
            NodeKind::Constant(index) => KindRecord::Constant(*index),
            NodeKind::Sizes(dims) => KindRecord::Sizes(from_dims(dims)),
            NodeKind::Call(call) => KindRecord::Call {
                operation: call.operation.name.to_string(),
                params: call.params.iter().map(|param| param.as_ref().map(param_record)).collect(),
            },
            NodeKind::Projection(output) => KindRecord::Projection(*output),
            NodeKind::Written(input) => KindRecord::Written(*input),
            NodeKind::View(View::Reshape) => KindRecord::Reshape,
            NodeKind::View(View::Expand) => KindRecord::Expand,
            NodeKind::View(View::Permute(order)) => KindRecord::Permute(order.clone()),
            NodeKind::View(View::Slice { axis, start, step }) => {
                KindRecord::Slice { axis: *axis, start: from_dim(start), step: *step }
            }
            NodeKind::Concat(axis) => KindRecord::Concat(*axis),
        };
        let inputs = node.inputs.iter().map(|input| input.map(|id| id.0)).collect();
        NodeRecord { kind, inputs, shape: from_dims(&node.shape), dtype: node.dtype, origin }
    }

    fn node(&self, symbols: usize, origins: &[Arc<Origin>]) -> Result<Node, String> {
        let kind = match &self.kind {
            KindRecord::Input(index) => NodeKind::Input(*index),
            KindRecord::Constant(index) => NodeKind::Constant(*index),
            KindRecord::Sizes(dims) => NodeKind::Sizes(to_dims(dims, symbols)?),
            KindRecord::Call { operation, params } => {
                let Some(operation) = catalog::find(operation) else {
                    return Err(format!("there is no operation `{operation}`"));
                };
                let params = params.iter().map(|record| match record {
                    Some(record) => to_param(record, symbols).map(Some),
                    None => Ok(None),
                });
                NodeKind::Call(Call { operation, params: params.collect::<Result<_, String>>()? })
            }
            KindRecord::Projection(output) => NodeKind::Projection(*output),
            KindRecord::Written(input) => NodeKind::Written(*input),
            KindRecord::Reshape => NodeKind::View(View::Reshape),
            KindRecord::Expand => NodeKind::View(View::Expand),
            KindRecord::Permute(order) => NodeKind::View(View::Permute(order.clone())),
            KindRecord::Slice { axis, start, step } => {
                NodeKind::View(View::Slice { axis: *axis, start: to_dim(start, symbols)?, step: *step })
            }
            KindRecord::Concat(axis) => NodeKind::Concat(*axis),
        };
        let Some(origin) = origins.get(self.origin as usize) else {
            return Err(format!("origin {} does not exist", self.origin));
        };
        Ok(Node {
            kind,
            inputs: self.inputs.iter().map(|input| input.map(NodeId)).collect(),
            shape: to_dims(&self.shape, symbols)?,
            dtype: self.dtype,
            origin: origin.clone(),
        })
    }
}

fn param_record(param: &Param) -> ParamRecord {
    match param {
        Param::Int(dim) => ParamRecord::Int(from_dim(dim)),
        Param::Float(value) => ParamRecord::Float(value.to_string()),
        Param::Bool(value) => ParamRecord::Bool(*value),
        Param::Enum(case) => ParamRecord::Enum(*case),
    }
}

fn to_param(record: &ParamRecord, symbols: usize) -> Result<Param, String> {
    Ok(match record {
        ParamRecord::Int(dim) => Param::Int(to_dim(dim, symbols)?),
        ParamRecord::Float(text) => Param::Float(text.parse().map_err(|_| format!("`{text}` is no number"))?),
        ParamRecord::Bool(value) => Param::Bool(*value),
        ParamRecord::Enum(case) => Param::Enum(*case),
    })
}
