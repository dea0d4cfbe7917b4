//! Linear layers take over what surrounds them: biases, activations, merged leading dimensions.

use super::query;
use super::rewriter::Rewriter;
use super::{activations, matmul};
use crate::dim::Dim;
use crate::graph::{Call, Graph, NodeId, Param};

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let _ = split_rows(rewriter, id)
            || bias(rewriter, id)
            || activation(rewriter, id)
            || unflatten(rewriter, id)
            || bias_under_view(rewriter, id);
    });
}

/// Whether a node is a linear layer without activation.
pub fn is_plain(graph: &Graph, id: NodeId) -> bool {
    query::calls(graph, id, "mlp.linear") && query::case(graph, id, "activation") == Some("none")
}

/// The call with another value of an enum param.
pub fn with_case(call: &Call, name: &str, value: &str) -> Option<Call> {
    let schema = call.operation.schema();
    let index = schema.params.iter().position(|param| param.name == name)?;
    let lz_schema::model::ParamType::Enum(cases) = &schema.params[index].ty else { return None };
    let case = cases.iter().position(|case| case == value)?;
    let mut call = call.clone();
    call.params[index] = Some(Param::Enum(case as u32));
    Some(call)
}

/// A vector that is added to every row of a layer without bias and activation.
fn bias(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((a, b)) = query::binary_of(graph, id, "add") else { return false };
    for (layer, addend) in [(a, b), (b, a)] {
        if !is_plain(graph, layer) || rewriter.uses(layer) != 1 || graph.node(layer).input(2).is_some() {
            continue;
        }
        let Some(bias) = query::feature(graph, addend) else { continue };
        let Some(call) = graph.node(layer).call().cloned() else { continue };
        let mut inputs = graph.node(layer).inputs.clone();
        inputs[2] = Some(bias);
        return rewriter.rewrite(id, &[layer], |build| build.call_with(call, inputs).map(Some));
    }
    false
}

/// A vector that is added after the leading dimensions were split again: the sum moves below the view, where the layer takes it.
fn bias_under_view(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((a, b)) = query::binary_of(graph, id, "add") else { return false };
    for (view, addend) in [(a, b), (b, a)] {
        let Some(inner) = query::reshape(graph, view) else { continue };
        let takes = is_plain(graph, inner) && graph.node(inner).input(2).is_none();
        let takes = takes || matmul::product(graph, inner).is_some_and(|found| found.bias.is_none());
        if !takes || rewriter.uses(view) != 1 || rewriter.uses(inner) != 1 {
            continue;
        }
        if query::last(graph, view) != query::last(graph, inner) {
            continue;
        }
        let Some(bias) = query::feature(graph, addend) else { continue };
        let shape = graph.node(view).shape.clone();
        return rewriter.rewrite(id, &[view], |build| {
            let sum = build.binary("add", inner, bias)?;
            build.reshape(sum, shape).map(Some)
        });
    }
    false
}

/// An activation of a layer's result, seen through a reshape.
fn activation(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((function, x)) = activations::plain(graph, id) else { return false };
    if function == "sigmoid" || rewriter.uses(x) != 1 {
        return false;
    }
    let (layer, shape) = match query::reshape(graph, x) {
        Some(layer) => (layer, Some(graph.node(x).shape.clone())),
        None => (x, None),
    };
    if !is_plain(graph, layer) || rewriter.uses(layer) != 1 {
        return false;
    }
    let node = graph.node(layer);
    let Some(call) = node.call().and_then(|call| with_case(call, "activation", function)) else {
        return false;
    };
    let inputs = node.inputs.clone();
    let interior: Vec<NodeId> = if layer == x { vec![x] } else { vec![x, layer] };
    rewriter.rewrite(id, &interior, |build| {
        let result = build.call_with(call, inputs)?;
        match shape {
            Some(shape) => build.reshape(result, shape).map(Some),
            None => Ok(Some(result)),
        }
    })
}

/// A layer takes any number of leading dimensions: merging them before is not needed.
fn unflatten(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    if !query::calls(graph, id, "mlp.linear") {
        return false;
    }
    let node = graph.node(id);
    let Some(rows) = node.input(0) else { return false };
    let Some(x) = query::reshape(graph, rows) else { return false };
    if graph.node(x).rank() < 2 || query::last(graph, x) != query::last(graph, rows) {
        return false;
    }
    let Some(call) = node.call().cloned() else { return false };
    let mut inputs = node.inputs.clone();
    inputs[0] = Some(x);
    let shape: Vec<Dim> = node.shape.clone();
    rewriter.rewrite(id, &[], |build| {
        let result = build.call_with(call, inputs)?;
        build.reshape(result, shape).map(Some)
    })
}

/// A layer whose rows were merged from other dimensions gives its result in the dimensions that follow.
fn split_rows(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some(layer) = query::reshape(graph, id).filter(|layer| rewriter.uses(*layer) == 1) else {
        return false;
    };
    if !query::calls(graph, layer, "mlp.linear") || query::last(graph, layer) != query::last(graph, id) {
        return false;
    }
    let node = graph.node(layer);
    let Some(rows) = node.input(0) else { return false };
    // Rows that are merged from dimensions before the last one are `unflatten`'s.
    let (Some(x), Some(features)) = (query::reshape(graph, rows), query::last(graph, rows)) else {
        return false;
    };
    if query::last(graph, x) == Some(features) {
        return false;
    }
    let mut shape = graph.node(id).shape.clone();
    let Some(last) = shape.last_mut() else { return false };
    *last = features.clone();
    let Some(call) = node.call().cloned() else { return false };
    let mut inputs = node.inputs.clone();
    rewriter.rewrite(id, &[layer], |build| {
        inputs[0] = Some(build.reshape(x, shape)?);
        build.call_with(call, inputs).map(Some)
    })
}
