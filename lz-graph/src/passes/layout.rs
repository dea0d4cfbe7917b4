//! Layouts: operations that accept `BSHD` and `BHSD` read their inputs as they are stored, and permutes move behind them, where they cancel.

use super::linear;
use super::query;
use super::rewriter::Rewriter;
use crate::graph::{Graph, NodeId};

/// Heads and length exchanged.
const EXCHANGE: [usize; 4] = [0, 2, 1, 3];

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let graph = rewriter.graph();
        let Some(inputs) = tensors(graph, id) else { return };
        let stored: Vec<Option<NodeId>> = inputs.iter().map(|input| exchanged(graph, *input)).collect();
        let permuted = stored.iter().flatten().count();
        // Each exchange that disappears at an input saves one; the others gain one.
        if 2 * permuted <= inputs.len() {
            return;
        }
        let layout = match query::case(graph, id, "layout") {
            Some("BSHD") => "BHSD",
            Some("BHSD") => "BSHD",
            _ => return,
        };
        let node = graph.node(id);
        let Some(call) = node.call().and_then(|call| linear::with_case(call, "layout", layout)) else {
            return;
        };
        let mut all = node.inputs.clone();
        rewriter.rewrite(id, &[], |build| {
            for (index, stored) in stored.iter().enumerate() {
                all[index] = Some(match stored {
                    Some(stored) => *stored,
                    None => build.permute(inputs[index], &EXCHANGE)?,
                });
            }
            let result = build.call_with(call, all)?;
            build.permute(result, &EXCHANGE).map(Some)
        });
    });
}

/// The leading inputs whose dimensions the layout orders.
fn tensors(graph: &Graph, id: NodeId) -> Option<Vec<NodeId>> {
    let node = graph.node(id);
    let count = match &*node.call()?.operation.name {
        "posenc.rope" => 1,
        "attention.gqa.prefill" | "attention.standard.prefill"
            if query::flag(graph, id, "return_lse") == Some(false) =>
        {
            3
        }
        _ => return None,
    };
    (0..count).map(|index| node.input(index)).collect()
}

fn exchanged(graph: &Graph, id: NodeId) -> Option<NodeId> {
    query::permute(graph, id).filter(|(_, order)| *order == EXCHANGE).map(|(stored, _)| stored)
}
