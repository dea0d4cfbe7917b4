//! Gated feed-forward blocks: `down(act(gate(x)) * up(x))` is `mlp.fused`.

use super::rewriter::Rewriter;
use super::{activations, linear, query};
use crate::build::ParamValue;
use crate::graph::{Graph, NodeId};

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let Some(block) = find(rewriter, id) else { return };
        rewriter.rewrite(id, &block.interior, |build| {
            let inputs = [Some(block.x), Some(block.gate), Some(block.up), Some(block.down)];
            let params = [("activation", ParamValue::from(block.activation.as_str()))];
            build.call("mlp.fused", &inputs, &params).map(Some)
        });
    });
}

struct Block {
    x: NodeId,
    gate: NodeId,
    up: NodeId,
    down: NodeId,
    activation: String,
    interior: Vec<NodeId>,
}

/// `mlp.fused` has neither biases nor an activation of its result.
fn find(rewriter: &Rewriter<'_>, id: NodeId) -> Option<Block> {
    let graph = rewriter.graph();
    let plain = linear::is_plain(graph, id) && graph.node(id).input(2).is_none();
    let (gated, down) = (graph.node(id).input(0)?, graph.node(id).input(1)?);
    if !plain {
        return None;
    }
    let mut interior = vec![gated];
    let (activated, up) = factors(graph, gated)?;
    for (activated, up) in [(activated, up), (up, activated)] {
        let mut interior_of_gate = Vec::new();
        let Some((activation, layer)) = activated.gate(graph, &mut interior_of_gate) else { continue };
        let Operand::Node(up) = up else { continue };
        let unbiased = |layer: NodeId| graph.node(layer).input(2).is_none();
        if !linear::is_plain(graph, up) || !unbiased(up) || !unbiased(layer) {
            continue;
        }
        let x = graph.node(layer).input(0)?;
        if graph.node(up).input(0)? != x {
            continue;
        }
        interior.extend(interior_of_gate);
        interior.extend([layer, up]);
        interior.dedup();
        let (gate, up) = (graph.node(layer).input(1)?, graph.node(up).input(1)?);
        let block = Block { x, gate, up, down, activation, interior };
        return rewriter.contains_all_uses(id, &block.interior).then_some(block);
    }
    None
}

/// A factor of the gated product.
#[derive(Clone, Copy)]
enum Operand {
    /// A node.
    Node(NodeId),
    /// The input of an activation that is part of the product's operation.
    Activated(NodeId, &'static str),
}

/// The factors of a product or of a gate.
fn factors(graph: &Graph, id: NodeId) -> Option<(Operand, Operand)> {
    if let Some((a, b)) = query::binary_of(graph, id, "mul") {
        return Some((Operand::Node(a), Operand::Node(b)));
    }
    let activation = if query::calls(graph, id, "activation.silu_mul") {
        "silu"
    } else if query::calls(graph, id, "activation.gelu_mul") {
        if query::case(graph, id, "approximate") == Some("tanh") { "gelu_tanh" } else { "gelu" }
    } else {
        return None;
    };
    let node = graph.node(id);
    Some((Operand::Activated(node.input(0)?, activation), Operand::Node(node.input(1)?)))
}

impl Operand {
    /// The activation and the linear layer below it.
    fn gate(self, graph: &Graph, interior: &mut Vec<NodeId>) -> Option<(String, NodeId)> {
        match self {
            Operand::Activated(layer, activation) => {
                linear::is_plain(graph, layer).then(|| (activation.to_owned(), layer))
            }
            Operand::Node(id) if query::calls(graph, id, "mlp.linear") => {
                let activation = query::case(graph, id, "activation")?;
                (activation != "none").then(|| (activation.to_owned(), id))
            }
            Operand::Node(id) => {
                let (activation, layer) = activations::plain(graph, id)?;
                interior.push(id);
                let known = activation != "sigmoid" && linear::is_plain(graph, layer);
                known.then(|| (activation.to_owned(), layer))
            }
        }
    }
}
