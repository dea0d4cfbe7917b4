//! RMS and layer normalization written out.
//!
//! Rewrites compose: the core becomes a norm without weight, then weight, offset, bias and casts join it one after the other, so every
//! spelling of the frameworks (casts to f32 and back, `1 + weight`, the weight before or after the cast) ends in one call.

use std::sync::LazyLock;

use lz_core::DType;

use super::pattern::{Number, Pattern, binary, capture, plus, power, product, unary};
use super::query;
use super::rewriter::Rewriter;
use crate::build::ParamValue;
use crate::graph::{Graph, NodeId, Param};

/// `x / sqrt(mean(x²) + eps)`.
static RMS: LazyLock<Pattern> = LazyLock::new(|| {
    let x = || capture("x");
    let squares = Pattern::Column(Box::new(Pattern::Reduce("mean", Box::new(power(x(), 2)))));
    let with_eps = || plus(squares.clone(), Number::Capture("eps"));
    let across = |pattern| Pattern::Across(Box::new(pattern));
    Pattern::Either(vec![
        product(1.0, [x(), across(unary("rsqrt", with_eps()))]),
        product(1.0, [x(), across(unary("reciprocal", unary("square_root", with_eps())))]),
        binary("div", x(), across(unary("square_root", with_eps()))),
    ])
});

/// `x - mean(x)`.
static CENTERED: LazyLock<Pattern> = LazyLock::new(|| {
    let mean = Pattern::Column(Box::new(Pattern::Reduce("mean", Box::new(capture("x")))));
    binary("sub", capture("x"), Pattern::Across(Box::new(mean)))
});

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let _ = core(rewriter, id)
            || centered(rewriter, id)
            || weight(rewriter, id)
            || offset(rewriter, id)
            || bias(rewriter, id)
            || casts(rewriter, id);
    });
}

fn core(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let Some(found) = RMS.find(rewriter, id) else { return false };
    let (Some(x), Some(eps)) = (found.node("x"), found.number("eps")) else { return false };
    rewriter.rewrite(id, &found.interior, |build| {
        build.call("norm.rms", &[Some(x)], &[("eps", ParamValue::from(eps))]).map(Some)
    })
}

/// An RMS norm of centered rows is a layer norm.
fn centered(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    if !query::calls(graph, id, "norm.rms") || query::float(graph, id, "weight_offset") != Some(0.0) {
        return false;
    }
    let (Some(rows), weight) = (graph.node(id).input(0), graph.node(id).input(1)) else { return false };
    let Some(eps) = query::float(graph, id, "eps") else { return false };
    let Some(found) = CENTERED.find(rewriter, rows) else { return false };
    let Some(x) = found.node("x").filter(|_| rewriter.uses(rows) == 1) else { return false };
    let interior = [found.interior, vec![rows]].concat();
    rewriter.rewrite(id, &interior, |build| {
        build.call("norm.layer", &[Some(x), weight, None], &[("eps", ParamValue::from(eps))]).map(Some)
    })
}

/// The norm that a node calls.
fn norm(graph: &Graph, id: NodeId) -> Option<&'static str> {
    if query::calls(graph, id, "norm.rms") {
        return Some("norm.rms");
    }
    let plain =
        query::calls(graph, id, "norm.layer") && query::flag(graph, id, "return_stats") == Some(false);
    plain.then_some("norm.layer")
}

/// The norm again, with another value for one input.
fn with_input(
    rewriter: &mut Rewriter<'_>,
    root: NodeId,
    norm: NodeId,
    interior: &[NodeId],
    index: usize,
    value: NodeId,
) -> bool {
    let node = rewriter.node(norm);
    let Some(call) = node.call().cloned() else { return false };
    let mut inputs = node.inputs.clone();
    inputs[index] = Some(value);
    rewriter.rewrite(root, interior, |build| build.call_with(call, inputs).map(Some))
}

/// A factor per feature joins a norm that has no weight. The norm may be rounded (cast) before.
fn weight(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((a, b)) = query::binary_of(graph, id, "mul") else { return false };
    for (normalized, factor) in [(a, b), (b, a)] {
        let Some(weight) = query::feature(graph, factor) else { continue };
        let (inner, upcast) = match query::cast(graph, normalized) {
            Some(inner) => (inner, query::cast(graph, graph.node(inner).input(0).unwrap_or(inner))),
            None => (normalized, None),
        };
        let Some(name) = norm(graph, inner) else { continue };
        let node = graph.node(inner);
        if node.input(1).is_some() || (name == "norm.layer" && node.input(2).is_some()) {
            continue;
        }
        let mut interior = vec![normalized];
        if inner != normalized {
            interior.push(inner);
        }
        if !rewriter.contains_all_uses(id, &interior) {
            continue;
        }
        if inner == normalized {
            return with_input(rewriter, id, inner, &interior, 1, weight);
        }
        // `weight * norm(x.float()).to(dtype)`: the norm computes in f32 anyway.
        let (Some(x), Some(call)) = (upcast, node.call().cloned()) else { continue };
        if graph.node(x).dtype != graph.node(id).dtype || !widened(graph, x, node.dtype) {
            continue;
        }
        let mut inputs = node.inputs.clone();
        (inputs[0], inputs[1]) = (Some(x), Some(weight));
        return rewriter.rewrite(id, &interior, |build| build.call_with(call, inputs).map(Some));
    }
    false
}

/// An addend per feature joins a layer norm that has no bias.
fn bias(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((a, b)) = query::binary_of(graph, id, "add") else { return false };
    for (normalized, addend) in [(a, b), (b, a)] {
        if norm(graph, normalized) != Some("norm.layer") || rewriter.uses(normalized) != 1 {
            continue;
        }
        let node = graph.node(normalized);
        let Some(bias) = query::feature(graph, addend).filter(|_| node.input(2).is_none()) else { continue };
        // Weight and bias have one dtype.
        if node.input(1).is_some_and(|weight| graph.node(weight).dtype != graph.node(bias).dtype) {
            continue;
        }
        return with_input(rewriter, id, normalized, &[normalized], 2, bias);
    }
    false
}

/// A number that is added to the weight becomes `weight_offset`, and a cast of the weight disappears.
fn offset(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    if !query::calls(graph, id, "norm.rms") || query::float(graph, id, "weight_offset") != Some(0.0) {
        return false;
    }
    let Some(weight) = graph.node(id).input(1) else { return false };
    let Some((stored, number)) = query::shifted(graph, weight) else { return false };
    let stored =
        query::cast(graph, stored).filter(|inner| widened(graph, *inner, DType::F32)).unwrap_or(stored);
    let node = graph.node(id);
    let Some(mut call) = node.call().cloned() else { return false };
    let mut inputs = node.inputs.clone();
    inputs[1] = Some(stored);
    let params = &call.operation.schema().params;
    let Some(index) = params.iter().position(|param| param.name == "weight_offset") else { return false };
    call.params[index] = Some(Param::Float(number));
    rewriter.rewrite(id, &[weight], |build| build.call_with(call, inputs).map(Some))
}

/// A norm of widened rows that is rounded to their dtype is a norm of the rows.
fn casts(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some(inner) = query::cast(graph, id).filter(|inner| rewriter.uses(*inner) == 1) else { return false };
    if norm(graph, inner).is_none() {
        return false;
    }
    let node = graph.node(inner);
    let Some(rows) = node.input(0) else { return false };
    let Some(x) = query::cast(graph, rows) else { return false };
    if graph.node(x).dtype != graph.node(id).dtype || !widened(graph, x, node.dtype) {
        return false;
    }
    let Some(call) = node.call().cloned() else { return false };
    let mut inputs = node.inputs.clone();
    inputs[0] = Some(x);
    // Weights may keep the dtype in which they are stored if both do.
    let stored: Vec<Option<NodeId>> = inputs[1..].iter().map(|input| stored_weight(graph, *input)).collect();
    let mut dtypes = stored.iter().flatten().map(|id| graph.node(*id).dtype);
    let first = dtypes.next();
    if dtypes.all(|dtype| Some(dtype) == first) {
        inputs[1..].clone_from_slice(&stored);
    }
    rewriter.rewrite(id, &[inner], |build| build.call_with(call, inputs).map(Some))
}

fn stored_weight(graph: &Graph, input: Option<NodeId>) -> Option<NodeId> {
    let input = input?;
    Some(
        query::cast(graph, input)
            .filter(|stored| widened(graph, *stored, graph.node(input).dtype))
            .unwrap_or(input),
    )
}

/// Whether a dtype contains every value of the node's.
fn widened(graph: &Graph, id: NodeId, to: DType) -> bool {
    to == DType::F32 && matches!(graph.node(id).dtype, DType::F16 | DType::BF16)
}
