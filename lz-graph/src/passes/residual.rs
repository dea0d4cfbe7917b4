//! A sum that is normalized and used again: `norm.rms.add`, which overwrites one addend with the sum.

use super::query;
use super::rewriter::Rewriter;
use crate::graph::{NodeId, NodeKind};

/// Index of `residual` among the inputs of `norm.rms.add`.
const RESIDUAL: usize = 1;

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let graph = rewriter.graph();
        if !query::calls(graph, id, "norm.rms") {
            return;
        }
        let node = graph.node(id);
        let (Some(sum), weight) = (node.input(0), node.input(1)) else { return };
        let Some((a, b)) = query::binary_of(graph, sum, "add") else { return };
        // A sum without another reader needs no memory; two norms would overwrite the same addend.
        let mut users = graph.ids().filter(|user| {
            rewriter.uses(*user) > 0 && graph.node(*user).inputs.iter().flatten().any(|input| *input == sum)
        });
        if rewriter.uses(sum) < 2 || users.any(|user| user != id && query::calls(graph, user, "norm.rms")) {
            return;
        }
        let Some((x, residual)) =
            [(a, b), (b, a)].into_iter().find(|(_, other)| is_overwritable(rewriter, *other))
        else {
            return;
        };
        let given =
            |name| query::float(graph, id, name).map(|value| (name, crate::build::ParamValue::from(value)));
        let (Some(eps), Some(offset)) = (given("eps"), given("weight_offset")) else { return };
        let mut call = None;
        let replaced = rewriter.rewrite(id, &[sum], |build| {
            let new = build.call("norm.rms.add", &[Some(x), Some(residual), weight], &[eps, offset])?;
            call = Some(new);
            Ok(Some(new))
        });
        if let Some(call) = call.filter(|_| replaced) {
            rewriter.rewrite(sum, &[], |build| build.written(call, RESIDUAL).map(Some));
        }
    });
}

/// A tensor of its own memory that only the sum reads.
fn is_overwritable(rewriter: &Rewriter<'_>, id: NodeId) -> bool {
    let node = rewriter.node(id);
    let owned = match node.kind {
        NodeKind::Call(_) => rewriter.graph().written_inputs(id).is_empty(),
        NodeKind::Concat(_) | NodeKind::Projection(_) => true,
        // The memory of an earlier sum, which this one overwrites in turn.
        NodeKind::Written(_) => {
            node.input(0).is_some_and(|call| query::calls(rewriter.graph(), call, "norm.rms.add"))
        }
        _ => false,
    };
    owned && rewriter.uses(id) == 1
}
