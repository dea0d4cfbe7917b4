//! Arithmetic that changes nothing: `x * 1`, `x + 0`, `mask & true`, a double negation, a selection whose condition is known.

use super::rewriter::Rewriter;
use super::{affine, query};
use crate::graph::{Graph, NodeId, Param};

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let graph = rewriter.graph();
        let same = neutral_number(graph, id)
            .or_else(|| neutral_int(graph, id))
            .or_else(|| double(graph, id))
            .or_else(|| known_selection(graph, id));
        if let Some(same) = same {
            rewriter.rewrite(id, &[], |_| Ok(Some(same)));
        }
    });
}

fn neutral_number(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let with = query::with_scalar(graph, id)?;
    let neutral = match (with.function, with.reversed) {
        ("mul", _) | ("div" | "pow", false) => with.value == 1.0,
        ("add", _) | ("sub", false) => with.value == 0.0,
        _ => false,
    };
    neutral.then_some(with.x)
}

fn neutral_int(graph: &Graph, id: NodeId) -> Option<NodeId> {
    if !query::calls(graph, id, "primitive.binary_int_scalar") {
        return None;
    }
    let Param::Int(value) = query::param(graph, id, "value")? else { return None };
    let reversed = query::flag(graph, id, "reversed")?;
    let value = value.constant()?;
    let boolean = graph.node(id).dtype == lz_core::DType::Bool;
    let neutral = match (query::case(graph, id, "function")?, reversed) {
        ("add" | "bitwise_or" | "bitwise_xor", _) | ("sub" | "shift_left" | "shift_right", false) => {
            value == 0
        }
        ("mul", _) | ("floor_divide" | "trunc_divide", false) => value == 1 || (boolean && value != 0),
        ("bitwise_and", _) => value == -1 || (boolean && value != 0),
        _ => false,
    };
    neutral.then(|| graph.node(id).input(0)).flatten()
}

fn double(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let (function, inner) = query::unary(graph, id)?;
    let (before, x) = query::unary(graph, inner)?;
    let boolean = graph.node(id).dtype == lz_core::DType::Bool;
    let inverse = match (function, before) {
        ("neg", "neg") | ("bitwise_not", "bitwise_not") => true,
        ("logical_not" | "bitwise_not", "logical_not" | "bitwise_not") => boolean,
        _ => false,
    };
    inverse.then_some(x)
}

/// The operand that a selection always takes. Importers wrap negative indices of ranges, which are never negative.
fn known_selection(graph: &Graph, id: NodeId) -> Option<NodeId> {
    if !query::calls(graph, id, "primitive.where") {
        return None;
    }
    let node = graph.node(id);
    let branch = if affine::truth(graph, node.input(0)?)? { 1 } else { 2 };
    node.input(branch)
}
