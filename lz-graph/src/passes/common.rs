//! Common subexpressions: nodes with the same kind, params and inputs are computed once.

use std::collections::{HashMap, HashSet};

use super::rewriter::Rewriter;
use crate::dim::Dim;
use crate::graph::{Graph, NodeId, NodeKind, Param, View};

/// Constants up to this size are compared by value.
const MAX_COMPARED_BYTES: usize = 64;

pub fn run(rewriter: &mut Rewriter<'_>) {
    let mut seen: HashMap<Key, NodeId> = HashMap::new();
    // Memory that a call overwrites gets no further readers: they might depend on that call.
    let graph = rewriter.graph();
    let overwritten: HashSet<NodeId> = graph.ids().flat_map(|id| graph.written_inputs(id)).collect();
    rewriter.each(|rewriter, id| {
        if overwritten.contains(&id) {
            return;
        }
        let Some(key) = Key::of(rewriter.graph(), id) else { return };
        match seen.get(&key) {
            Some(&first) => {
                rewriter.rewrite(id, &[], |_| Ok(Some(first)));
            }
            None => {
                seen.insert(key, id);
            }
        }
    });
}

/// What makes two nodes the same.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    kind: KindKey,
    inputs: Vec<Option<NodeId>>,
    shape: Vec<Dim>,
    dtype: lz_core::DType,
}

#[derive(PartialEq, Eq, Hash)]
enum KindKey {
    Constant(usize),
    Value(Vec<u8>),
    Sizes(Vec<Dim>),
    Call(String, Vec<Option<ParamKey>>),
    Projection(usize),
    Reshape,
    Permute(Vec<usize>),
    Slice(usize, Dim, i64),
    Expand,
    Concat(usize),
}

#[derive(PartialEq, Eq, Hash)]
enum ParamKey {
    Int(Dim),
    Float(u64),
    Bool(bool),
    Enum(u32),
}

impl Key {
    /// `None` for nodes that must stay: inputs and calls that change memory.
    fn of(graph: &Graph, id: NodeId) -> Option<Key> {
        let node = graph.node(id);
        let kind = match &node.kind {
            NodeKind::Input(_) | NodeKind::Written(_) => return None,
            NodeKind::Constant(index) => match value_bytes(graph, *index) {
                Some(bytes) => KindKey::Value(bytes),
                None => KindKey::Constant(*index),
            },
            NodeKind::Sizes(dims) => KindKey::Sizes(dims.clone()),
            NodeKind::Call(_) if !graph.written_inputs(id).is_empty() => return None,
            NodeKind::Call(call) => {
                let params = call.params.iter().map(|param| param.as_ref().map(param_key)).collect();
                KindKey::Call(call.operation.name.to_string(), params)
            }
            NodeKind::Projection(output) => KindKey::Projection(*output),
            NodeKind::View(View::Reshape) => KindKey::Reshape,
            NodeKind::View(View::Permute(order)) => KindKey::Permute(order.clone()),
            NodeKind::View(View::Slice { axis, start, step }) => KindKey::Slice(*axis, start.clone(), *step),
            NodeKind::View(View::Expand) => KindKey::Expand,
            NodeKind::Concat(axis) => KindKey::Concat(*axis),
        };
        Some(Key { kind, inputs: node.inputs.clone(), shape: node.shape.clone(), dtype: node.dtype })
    }
}

fn param_key(param: &Param) -> ParamKey {
    match param {
        Param::Int(dim) => ParamKey::Int(dim.clone()),
        Param::Float(value) => ParamKey::Float(value.to_bits()),
        Param::Bool(value) => ParamKey::Bool(*value),
        Param::Enum(case) => ParamKey::Enum(*case),
    }
}

/// The bytes of a small owned constant.
fn value_bytes(graph: &Graph, index: usize) -> Option<Vec<u8>> {
    match &graph.constants.get(index)?.data {
        crate::graph::ConstantData::Owned(tensor) if tensor.bytes().len() <= MAX_COMPARED_BYTES => {
            Some(tensor.bytes().to_vec())
        }
        _ => None,
    }
}
