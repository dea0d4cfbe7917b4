//! Linear layers of one input become one layer with joined weights, where rows are few: a layer of few rows is bound by the memory of its
//! weights, and one long read is faster than three short ones.

use super::linear;
use super::rewriter::Rewriter;
use crate::dim::Dim;
use crate::graph::{Graph, NodeId};

/// With more rows the products themselves dominate, and slices of the result cost copies. On a device one product of any number of rows
/// is faster than three, and its kernels read slices.
const MAX_ROWS: i64 = 16;

pub fn run(rewriter: &mut Rewriter<'_>) {
    if rewriter.engine().is_none() {
        return;
    }
    let users = rewriter.graph().users();
    rewriter.each(|rewriter, x| {
        let graph = rewriter.graph();
        let Some(users) = users.get(x.index()) else { return };
        let mut layers: Vec<NodeId> =
            users.iter().copied().filter(|user| is_projection(rewriter, *user, x)).collect();
        layers.dedup();
        let Some(&first) = layers.first() else { return };
        let biased = graph.node(first).input(2).is_some();
        layers.retain(|layer| graph.node(*layer).input(2).is_some() == biased);
        if layers.len() < 2 || !(has_few_rows(graph, x) || is_on_device(graph, first)) {
            return;
        }
        merge(rewriter, &layers);
    });
}

/// A plain layer of `x` with constant weights.
fn is_projection(rewriter: &Rewriter<'_>, id: NodeId, x: NodeId) -> bool {
    let graph = rewriter.graph();
    let constant = |input: Option<NodeId>| input.is_none_or(|input| graph.constant(input).is_some());
    rewriter.uses(id) > 0
        && linear::is_plain(graph, id)
        && graph.node(id).input(0) == Some(x)
        && constant(graph.node(id).input(1))
        && constant(graph.node(id).input(2))
}

fn is_on_device(graph: &Graph, layer: NodeId) -> bool {
    let weight = graph.node(layer).input(1).and_then(|weight| graph.constant(weight));
    weight.is_some_and(|weight| !weight.view().device().is_host())
}

fn has_few_rows(graph: &Graph, x: NodeId) -> bool {
    let Some((_, rows)) = graph.node(x).shape.split_last() else { return false };
    let most = rows.iter().try_fold(1i64, |product, dim| {
        let size = dim.constant().or_else(|| Some(graph.symbols.get(dim.symbol()?.0 as usize)?.max))?;
        product.checked_mul(size)
    });
    most.is_some_and(|rows| rows <= MAX_ROWS)
}

fn merge(rewriter: &mut Rewriter<'_>, layers: &[NodeId]) {
    let graph = rewriter.graph();
    let inputs = |index: usize| -> Vec<NodeId> {
        layers.iter().filter_map(|id| graph.node(*id).input(index)).collect()
    };
    let (weights, biases) = (inputs(1), inputs(2));
    let (Some(call), Some(x)) = (graph.node(layers[0]).call().cloned(), graph.node(layers[0]).input(0))
    else {
        return;
    };
    let axis = graph.node(layers[0]).rank() - 1;
    let sizes: Vec<Dim> = layers.iter().map(|id| graph.node(*id).shape[axis].clone()).collect();
    let mut joined = None;
    let mut start = Dim::from(0);
    for (layer, size) in layers.iter().zip(sizes) {
        let begin = start.clone();
        let done = rewriter.rewrite(*layer, &[], |build| {
            let whole = match joined {
                Some(whole) => whole,
                None => {
                    let weight = build.concat(&weights, 0)?;
                    let bias = if biases.is_empty() { None } else { Some(build.concat(&biases, 0)?) };
                    let whole = build.call_with(call.clone(), vec![Some(x), Some(weight), bias])?;
                    joined = Some(whole);
                    whole
                }
            };
            build.slice(whole, axis, begin, size.clone(), 1).map(Some)
        });
        if !done {
            return;
        }
        start = start.plus(&size);
    }
}
