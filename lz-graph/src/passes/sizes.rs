//! Sizes without `min` and `max` that the ranges of symbols decide, so that equal sizes compare equal.

use crate::dim::{Dim, Symbol};
use crate::graph::{Graph, NodeKind, Param, View};

/// Simplifies every size of the graph.
pub fn simplify(graph: &mut Graph) {
    let known = graph.symbols.clone();
    let ranges = |symbol: Symbol| {
        known.get(symbol.0 as usize).map_or((i64::MIN, i64::MAX), |info| (info.min, info.max))
    };
    let simpler = |dim: &mut Dim| {
        if dim.constant().is_none() && dim.symbol().is_none() {
            *dim = dim.within(&ranges);
        }
    };
    for node in &mut graph.nodes {
        node.shape.iter_mut().for_each(simpler);
        match &mut node.kind {
            NodeKind::Sizes(dims) => dims.iter_mut().for_each(simpler),
            NodeKind::View(View::Slice { start, .. }) => simpler(start),
            NodeKind::Call(call) => {
                for param in call.params.iter_mut().flatten() {
                    if let Param::Int(dim) = param {
                        simpler(dim);
                    }
                }
            }
            _ => {}
        }
    }
    for check in &mut graph.checks {
        simpler(&mut check.left);
        simpler(&mut check.right);
    }
    graph.checks.retain(|check| check.left != check.right);
}
