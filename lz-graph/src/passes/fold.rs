//! Constant folding: nodes whose inputs are constants are computed now, by the engine.

use lz_core::args::Arg;
use lz_core::{Tensor, TensorView};
use lz_engine::{Engine, dynamic};

use super::rewriter::Rewriter;
use crate::dim::Dim;
use crate::graph::{Graph, NodeId, NodeKind, OutputInfo, Param, View};
use crate::interpret;
use crate::strided::Strided;

/// A result may be this much larger than the constants that it is made of, or 1 MiB.
const MAX_GROWTH: i64 = 4;
const MAX_SMALL_BYTES: i64 = 1 << 20;

pub fn run(rewriter: &mut Rewriter<'_>) {
    let Some(engine) = rewriter.engine() else { return };
    rewriter.each(|rewriter, id| {
        let graph = rewriter.graph();
        if !is_foldable(graph, id) {
            return;
        }
        // A node that fails now fails in the same way when the graph runs, with its message.
        let Some(result) = call(engine, graph, id).or_else(|| interpret(engine, graph, id)) else { return };
        rewriter.rewrite(id, &[], |build| Ok(Some(build.owned(result))));
    });
}

/// Calls the operation with views of the constants: weights are large, so nothing is copied.
fn call(engine: &Engine, graph: &Graph, id: NodeId) -> Option<Tensor> {
    let call = graph.node(id).call()?;
    let mut args = Vec::new();
    for input in &graph.node(id).inputs {
        args.push(match input {
            None => Arg::Absent,
            Some(input) => Arg::Tensor(constant_view(graph, *input)?),
        });
    }
    for param in &call.params {
        args.push(interpret::param_value(param.as_ref(), &[]).ok()?.map_or(Arg::Absent, Arg::Value));
    }
    let outputs = dynamic::call(engine, call.operation, &mut args).ok()?;
    outputs.into_iter().find_map(|output| match output {
        dynamic::Output::Tensor(tensor) => Some(tensor),
        _ => None,
    })
}

/// A view of a constant, unless it needs a copy.
fn constant_view(graph: &Graph, id: NodeId) -> Option<TensorView<'_>> {
    let mut views = Vec::new();
    let mut source = id;
    while let Some(view) = graph.node(source).view() {
        views.push((view, &graph.node(source).shape));
        source = graph.node(source).input(0)?;
    }
    let constant = graph.readable_constant(source)?.view();
    let mut strided = Strided { layout: *constant.layout(), offset: 0 };
    for (view, shape) in views.into_iter().rev() {
        let shape = shape.iter().map(Dim::constant).collect::<Option<Vec<i64>>>()?;
        let start = match view {
            View::Slice { start, .. } => start.constant()?,
            _ => 0,
        };
        strided = strided.view(view, &shape, start)?;
    }
    let bytes = strided.offset as isize * strided.layout.dtype.size() as isize;
    // SAFETY: `Strided::view` keeps every element inside the constant, which is borrowed with the graph.
    Some(unsafe { TensorView::from_raw(constant.as_ptr().wrapping_offset(bytes), strided.layout) })
}

/// Runs the part of the graph that the node needs.
fn interpret(engine: &Engine, graph: &Graph, id: NodeId) -> Option<Tensor> {
    interpret::run(engine, &part_of(graph, id)?, &[]).ok()?.pop()
}

/// A call or a concatenation of constants, with known sizes and a result that is not much larger than they are.
fn is_foldable(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    match &node.kind {
        NodeKind::Call(call) => {
            let known = |param: &Option<Param>| match param {
                Some(Param::Int(dim)) => dim.constant().is_some(),
                _ => true,
            };
            if !call.params.iter().all(known) || !graph.written_inputs(id).is_empty() {
                return false;
            }
        }
        NodeKind::Concat(_) => {}
        NodeKind::Sizes(dims) => return dims.iter().all(|dim| dim.constant().is_some()),
        _ => return false,
    }
    let Some(result) = bytes(graph, id) else { return false };
    let mut given = 0i64;
    for input in node.inputs.iter().flatten() {
        let mut source = *input;
        while graph.node(source).view().is_some() {
            let Some(before) = graph.node(source).input(0) else { return false };
            source = before;
        }
        if graph.readable_constant(source).is_none() || bytes(graph, *input).is_none() {
            return false;
        }
        given = given.saturating_add(bytes(graph, source).unwrap_or(0));
    }
    result <= given.saturating_mul(MAX_GROWTH).saturating_add(MAX_SMALL_BYTES)
}

/// The size of a result, if it does not depend on symbols.
fn bytes(graph: &Graph, id: NodeId) -> Option<i64> {
    let node = graph.node(id);
    let mut elements = 1i64;
    for dim in &node.shape {
        elements = elements.checked_mul(dim.constant()?)?;
    }
    elements.checked_mul(node.dtype.size() as i64)
}

/// A graph of the node and the constants that it needs.
fn part_of(graph: &Graph, id: NodeId) -> Option<Graph> {
    let mut part = Graph::default();
    let mut pending = vec![id];
    let mut needed = Vec::new();
    while let Some(next) = pending.pop() {
        if !needed.contains(&next) {
            needed.push(next);
            pending.extend(graph.node(next).inputs.iter().flatten());
        }
    }
    // Inputs before their users: ids are not in order once a pass appended nodes.
    let mut placed: Vec<(NodeId, NodeId)> = Vec::new();
    while placed.len() < needed.len() {
        let find = |id: NodeId| placed.iter().find(|(old, _)| *old == id).map(|(_, new)| *new);
        let ready = |id: &&NodeId| {
            find(**id).is_none()
                && graph.node(**id).inputs.iter().flatten().all(|input| find(*input).is_some())
        };
        let next = *needed.iter().find(ready)?;
        let mut node = graph.node(next).clone();
        for input in node.inputs.iter_mut().flatten() {
            *input = find(*input)?;
        }
        if let NodeKind::Constant(index) = &mut node.kind {
            part.constants.push(graph.constants.get(*index)?.clone());
            *index = part.constants.len() - 1;
        }
        let new = part.push(node);
        placed.push((next, new));
    }
    let node = placed.iter().find(|(old, _)| *old == id).map(|(_, new)| *new)?;
    part.outputs.push(OutputInfo { name: String::new(), node });
    Some(part)
}
