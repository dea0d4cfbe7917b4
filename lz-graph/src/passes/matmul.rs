//! Absorbs factors, transposes and biases into matrix products, and turns products with constant matrices into linear layers.

use lz_core::DType;

use super::query;
use super::rewriter::Rewriter;
use crate::build::{Builder, ParamValue};
use crate::graph::{Graph, NodeId};

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let _ = scaled_result(rewriter, id)
            || scaled_operand(rewriter, id)
            || bias(rewriter, id)
            || linear(rewriter, id);
    });
}

/// A matrix product: operands, bias, factor.
#[derive(Clone, Copy)]
pub struct Product {
    pub a: NodeId,
    pub b: NodeId,
    pub bias: Option<NodeId>,
    pub alpha: f64,
}

/// The call of `primitive.matmul`.
pub fn product(graph: &Graph, id: NodeId) -> Option<Product> {
    if !query::calls(graph, id, "primitive.matmul") {
        return None;
    }
    let node = graph.node(id);
    Some(Product {
        a: node.input(0)?,
        b: node.input(1)?,
        bias: node.input(2),
        alpha: query::float(graph, id, "alpha")?,
    })
}

fn replace(rewriter: &mut Rewriter<'_>, id: NodeId, interior: &[NodeId], new: Product) -> bool {
    rewriter.rewrite(id, interior, |build| {
        let params = [("alpha", ParamValue::from(new.alpha))];
        let params = if new.alpha == 1.0 { &params[..0] } else { &params[..] };
        build.call("primitive.matmul", &[Some(new.a), Some(new.b), new.bias], params).map(Some)
    })
}

/// Whether this becomes a linear layer, which has no factor.
fn is_layer(graph: &Graph, found: &Product) -> bool {
    query::is_constant(graph, found.b)
}

/// A product that is multiplied by a number.
fn scaled_result(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((inner, factor)) = query::scaled(graph, id) else { return false };
    let found = product(graph, inner).filter(|found| found.bias.is_none() && rewriter.uses(inner) == 1);
    match found.filter(|found| !is_layer(graph, found)) {
        Some(found) => replace(rewriter, id, &[inner], Product { alpha: found.alpha * factor, ..found }),
        None => false,
    }
}

/// An operand that is multiplied by a number, seen through views.
fn scaled_operand(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some(found) = product(graph, id).filter(|found| !is_layer(graph, found)) else { return false };
    for first in [true, false] {
        let operand = if first { found.a } else { found.b };
        let Some((views, inner)) = views_to(rewriter, operand) else { continue };
        let Some((x, factor)) = query::scaled(graph, inner) else { continue };
        // A constant operand is scaled once, when constants are folded.
        if rewriter.uses(inner) != 1 || query::is_constant(graph, x) {
            continue;
        }
        let interior = [views.clone(), vec![inner]].concat();
        return rewriter.rewrite(id, &interior, |build| {
            let operand = view_again(build, &views, x);
            let (a, b) = if first { (operand, found.b) } else { (found.a, operand) };
            let params = [("alpha", ParamValue::from(found.alpha * factor))];
            build.call("primitive.matmul", &[Some(a), Some(b), found.bias], &params).map(Some)
        });
    }
    false
}

/// The same views of another tensor of the same shape.
pub fn view_again(build: &mut Builder, views: &[NodeId], x: NodeId) -> NodeId {
    views.iter().rev().fold(x, |x, view| {
        let node = build.graph().node(*view).clone();
        let dtype = build.dtype(x);
        build.push(node.kind, &[x], node.shape, dtype)
    })
}

/// The views (outermost first) between a node and the tensor that they show, none of which is used elsewhere.
pub fn views_to(rewriter: &Rewriter<'_>, mut id: NodeId) -> Option<(Vec<NodeId>, NodeId)> {
    let mut views = Vec::new();
    while rewriter.node(id).view().is_some() {
        if rewriter.uses(id) != 1 {
            return None;
        }
        views.push(id);
        id = rewriter.node(id).input(0)?;
    }
    Some((views, id))
}

/// A vector that is added to every row.
fn bias(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((a, b)) = query::binary_of(graph, id, "add") else { return false };
    for (inner, addend) in [(a, b), (b, a)] {
        let Some(found) = product(graph, inner).filter(|found| found.bias.is_none()) else { continue };
        if rewriter.uses(inner) != 1 {
            continue;
        }
        if let Some(bias) = query::feature(graph, addend) {
            return replace(rewriter, id, &[inner], Product { bias: Some(bias), ..found });
        }
    }
    false
}

/// A product with one constant matrix is a linear layer, whose weight has one row per output feature.
fn linear(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some(found) = product(graph, id).filter(|found| found.alpha == 1.0) else { return false };
    let matrix = query::before_expand(graph, found.b);
    let known = matches!(graph.node(id).dtype, DType::F32 | DType::F16 | DType::BF16);
    if !known || graph.node(matrix).rank() != 2 || !query::is_constant(graph, matrix) {
        return false;
    }
    let stored = query::permute(graph, matrix).map(|(stored, _)| stored);
    // The copy of a matrix that is stored the other way is made once, by folding.
    if stored.is_none() && rewriter.engine().is_none() {
        return false;
    }
    rewriter.rewrite(id, &[], |build| {
        let weight = match stored {
            Some(stored) => stored,
            None => {
                let turned = build.permute(matrix, &[1, 0])?;
                build.call("primitive.copy", &[Some(turned)], &[])?
            }
        };
        build.call("mlp.linear", &[Some(found.a), Some(weight), found.bias], &[]).map(Some)
    })
}
