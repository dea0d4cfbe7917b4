//! Constant folding: nodes whose inputs are constants are computed now, by the engine.

use super::rewriter::Rewriter;
use crate::graph::{Graph, NodeId, NodeKind, OutputInfo, Param};
use crate::interpret;

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
        let Some(part) = part_of(graph, id) else { return };
        // A node that fails now fails in the same way when the graph runs, with its message.
        let Ok(mut results) = interpret::run(engine, &part, &[]) else { return };
        let Some(result) = results.pop() else { return };
        rewriter.rewrite(id, &[], |build| Ok(Some(build.owned(result))));
    });
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
        if graph.constant(source).is_none() || bytes(graph, *input).is_none() {
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
