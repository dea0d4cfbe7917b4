//! Attention written out: scores, scale, soft cap, masks, softmax, weighted sum; and repeated keys and values.
//!
//! The walk goes from the softmax down to the product of queries and keys, so every order of these steps that frameworks write is found.

use lz_core::DType;

use super::matmul::{self, Product};
use super::query;
use super::rewriter::Rewriter;
use super::softmax;
use crate::build::{Builder, ParamValue};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId};

/// Operations with keys and values of fewer heads than queries.
const GROUPED: &str = "attention.gqa.prefill";

/// Elementwise steps between a softmax and the product below it.
const MAX_STEPS: usize = 32;

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let _ = written_out(rewriter, id) || repeated(rewriter, id) || scaled_input(rewriter, id);
    });
}

/// What the walk from the softmax to the scores found.
#[derive(Debug, Default)]
struct Scores {
    q: Option<NodeId>,
    /// Keys with the feature dimension before the length: the right operand of the product.
    keys: Option<NodeId>,
    scale: f64,
    soft_cap: f64,
    /// Masks that are added or that select, the outermost first.
    masks: Vec<Mask>,
    interior: Vec<NodeId>,
}

#[derive(Debug, Clone, Copy)]
enum Mask {
    /// Added to the scores.
    Added(NodeId),
    /// Scores are replaced by a number where the condition is false, or where it is true if `inverted`.
    Selected { condition: NodeId, otherwise: f64, inverted: bool },
}

/// `softmax(q kᵀ ...) v`.
fn written_out(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some(Product { a: weights, b: values, bias: None, alpha: 1.0 }) = matmul::product(graph, id) else {
        return false;
    };
    let Some(found) = find(rewriter, id, weights) else { return false };
    let (Some(q), Some(keys)) = (found.q, found.keys) else { return false };
    let dtype = graph.node(id).dtype;
    let fits = matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
        && graph.node(q).dtype == dtype
        && graph.node(q).rank() <= 4
        && found.scale > 0.0
        && found.scale.is_finite();
    if !fits {
        return false;
    }
    let shape = graph.node(id).shape.clone();
    rewriter.rewrite(id, &found.interior, |build| {
        let rank = build.rank(keys);
        let k = build.transpose(keys, rank as i64 - 2, rank as i64 - 1)?;
        let (q, k, v) = (four(build, q)?, four(build, k)?, four(build, values)?);
        let mask = join(build, &found.masks, dtype, rank)?;
        let mut params =
            vec![("layout", ParamValue::from("BHSD")), ("sm_scale", ParamValue::from(found.scale))];
        if found.soft_cap > 0.0 {
            params.push(("soft_cap", ParamValue::from(found.soft_cap)));
        }
        let result = build.call(GROUPED, &[Some(q), Some(k), Some(v), mask], &params)?;
        build.reshape(result, shape).map(Some)
    })
}

/// `[batch, heads, length, features]`: missing batch and head dimensions have size 1.
fn four(build: &mut Builder, id: NodeId) -> Result<NodeId, GraphError> {
    let mut shape = build.shape(id).to_vec();
    if shape.len() == 3 {
        shape.insert(1, Dim::from(1));
    }
    while shape.len() < 4 {
        shape.insert(0, Dim::from(1));
    }
    build.reshape(id, shape)
}

/// All masks as one: bool if all of them are, otherwise a float that is added.
fn join(
    build: &mut Builder,
    masks: &[Mask],
    dtype: DType,
    rank: usize,
) -> Result<Option<NodeId>, GraphError> {
    let bool_only = masks.iter().all(|mask| match mask {
        Mask::Selected { otherwise, .. } => *otherwise == f64::NEG_INFINITY,
        Mask::Added(_) => false,
    });
    let mut joined: Option<NodeId> = None;
    for mask in masks {
        let part = match *mask {
            Mask::Added(mask) => query::before_expand(build.graph(), mask),
            Mask::Selected { condition, otherwise, inverted } => {
                let condition = query::before_expand(build.graph(), condition);
                let visible = if inverted { build.unary("logical_not", condition)? } else { condition };
                if bool_only {
                    visible
                } else {
                    // The number absorbs every score that is added to it.
                    let (zero, number) = (build.scalar(0.0, dtype)?, build.scalar(otherwise, dtype)?);
                    build.select_where(visible, zero, number)?
                }
            }
        };
        joined = Some(match joined {
            None => part,
            Some(other) if bool_only => build.binary("bitwise_and", other, part)?,
            Some(other) => {
                let part = build.cast(part, build.dtype(other))?;
                build.binary("add", other, part)?
            }
        });
    }
    // Broadcasting aligns the last dimensions: the head dimension that a batch of matrices does not have comes between.
    match joined {
        Some(mask) if rank == 3 && build.rank(mask) == 3 => {
            let mut shape = build.shape(mask).to_vec();
            shape.insert(1, Dim::from(1));
            build.reshape(mask, shape).map(Some)
        }
        other => Ok(other),
    }
}

/// Finds the softmax above and the product below the scores.
fn find(rewriter: &Rewriter<'_>, root: NodeId, weights: NodeId) -> Option<Scores> {
    let graph = rewriter.graph();
    let mut found = Scores { scale: 1.0, ..Scores::default() };
    let mut id = weights;
    found.interior.push(id);
    while let Some(inner) = query::cast(graph, id) {
        found.interior.push(inner);
        id = inner;
    }
    let scores = if query::calls(graph, id, "primitive.softmax") {
        if query::flag(graph, id, "log")? {
            return None;
        }
        graph.node(id).input(0)?
    } else {
        let (x, interior) = softmax::written_out(rewriter, id)?;
        found.interior.extend(interior);
        x
    };
    descend(graph, scores, &mut found)?;
    found.interior.sort_unstable();
    found.interior.dedup();
    rewriter.contains_all_uses(root, &found.interior).then_some(found)
}

/// Goes down to the product of queries and keys.
fn descend(graph: &Graph, id: NodeId, found: &mut Scores) -> Option<()> {
    found.interior.push(id);
    if let Some(Product { a, b, bias: None, alpha }) = matmul::product(graph, id) {
        found.scale *= alpha;
        (found.q, found.keys) = (Some(a), Some(b));
        return Some(());
    }
    if let Some(inner) = query::cast(graph, id) {
        return descend(graph, inner, found);
    }
    if let Some((tanh, cap)) = query::scaled(graph, id)
        && let Some(("tanh", inner)) = query::unary(graph, tanh)
    {
        // Nothing may scale the capped scores.
        if cap <= 0.0 || found.soft_cap > 0.0 || found.scale != 1.0 {
            return None;
        }
        // cap * tanh(y) is the cap of cap * y.
        (found.soft_cap, found.scale) = (cap, cap);
        found.interior.push(tanh);
        return descend_without_masks(graph, inner, found);
    }
    if let Some((inner, factor)) = query::scaled(graph, id) {
        found.scale *= factor;
        return descend_without_masks(graph, inner, found);
    }
    if let Some((a, b)) = query::binary_of(graph, id, "add") {
        if found.masks.len() == MAX_STEPS {
            return None;
        }
        let scores_first = leads_to_product(graph, a);
        if !scores_first && !leads_to_product(graph, b) {
            return None;
        }
        let (scores, mask) = if scores_first { (a, b) } else { (b, a) };
        found.masks.push(Mask::Added(mask));
        return descend(graph, scores, found);
    }
    if query::calls(graph, id, "primitive.where") {
        let node = graph.node(id);
        let (condition, a, b) = (node.input(0)?, node.input(1)?, node.input(2)?);
        for (scores, number, inverted) in [(a, b, false), (b, a, true)] {
            if let Some(otherwise) =
                query::fill(graph, number).filter(|value| absorbs(*value, graph.node(id).dtype))
                && leads_to_product(graph, scores)
            {
                found.masks.push(Mask::Selected { condition, otherwise, inverted });
                return descend(graph, scores, found);
            }
        }
    }
    None
}

/// Below a scale or a cap there is no mask: it would be scaled as well.
fn descend_without_masks(graph: &Graph, id: NodeId, found: &mut Scores) -> Option<()> {
    let masks = found.masks.len();
    descend(graph, id, found)?;
    (found.masks.len() == masks).then_some(())
}

/// Whether a sum of the number and any score is the number again.
fn absorbs(value: f64, dtype: DType) -> bool {
    match dtype {
        DType::F16 => value <= -60_000.0,
        _ => value <= -1e30,
    }
}

/// Whether these are scores: below elementwise steps lies a product.
fn leads_to_product(graph: &Graph, id: NodeId) -> bool {
    let mut pending = vec![id];
    // Scores are few steps away from their product; a large graph of sums is none.
    for _ in 0..MAX_STEPS {
        let Some(id) = pending.pop() else { return false };
        if query::calls(graph, id, "primitive.matmul") {
            return true;
        }
        let next = query::cast(graph, id)
            .or_else(|| query::scaled(graph, id).map(|(x, _)| x))
            .or_else(|| query::unary(graph, id).filter(|(name, _)| *name == "tanh").map(|(_, x)| x));
        if let Some(next) = next {
            pending.push(next);
        } else if let Some((a, b)) = query::binary_of(graph, id, "add") {
            pending.extend([b, a]);
        } else if query::calls(graph, id, "primitive.where") {
            pending.extend(graph.node(id).inputs[1..].iter().flatten());
        }
    }
    false
}

/// Keys and values that are repeated per group of query heads are not materialized: grouped attention reads them once.
fn repeated(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let standard = query::calls(graph, id, "attention.standard.prefill");
    if !standard && !query::calls(graph, id, GROUPED) || query::case(graph, id, "layout") != Some("BHSD") {
        return false;
    }
    let node = graph.node(id);
    let (Some(keys), Some(values)) = (node.input(1), node.input(2)) else { return false };
    let (Some((k, times)), Some((v, same))) = (unrepeated(graph, keys), unrepeated(graph, values)) else {
        return false;
    };
    let Some(call) = node.call().cloned().filter(|_| times == same) else { return false };
    let mut inputs = node.inputs.clone();
    (inputs[1], inputs[2]) = (Some(k), Some(v));
    let schema = call.operation.schema();
    let given: Vec<(String, crate::graph::Param)> = schema
        .params
        .iter()
        .zip(&call.params)
        .filter_map(|(about, param)| Some((about.name.clone(), param.clone()?)))
        .collect();
    rewriter.rewrite(id, &[keys, values], |build| {
        let Some(operation) = crate::catalog::find(GROUPED) else { return Ok(None) };
        let params = operation.schema().params.iter();
        let params = params
            .map(|about| given.iter().find(|(name, _)| *name == about.name).map(|(_, param)| param.clone()));
        build.call_with(crate::graph::Call { operation, params: params.collect() }, inputs).map(Some)
    })
}

/// Queries or keys that are multiplied by a number, seen through views: the number is part of the scale of the scores.
fn scaled_input(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    if !query::calls(graph, id, GROUPED) && !query::calls(graph, id, "attention.standard.prefill") {
        return false;
    }
    let node = graph.node(id);
    let Some(scale) = query::float(graph, id, "sm_scale").or_else(|| {
        let features = node.input(0).and_then(|q| query::last(graph, q)?.constant())?;
        Some(1.0 / (features as f64).sqrt())
    }) else {
        return false;
    };
    for index in [0, 1] {
        let Some((views, inner)) = node.input(index).and_then(|input| matmul::views_to(rewriter, input))
        else {
            continue;
        };
        let Some((x, factor)) = query::scaled(graph, inner).filter(|(_, factor)| *factor > 0.0) else {
            continue;
        };
        if rewriter.uses(inner) != 1 {
            continue;
        }
        let Some(mut call) = node.call().cloned() else { return false };
        let position = call.operation.schema().params.iter().position(|param| param.name == "sm_scale");
        let Some(position) = position else { return false };
        call.params[position] = Some(crate::graph::Param::Float(scale * factor));
        let mut inputs = node.inputs.clone();
        let interior = [views.clone(), vec![inner]].concat();
        return rewriter.rewrite(id, &interior, |build| {
            inputs[index] = Some(matmul::view_again(build, &views, x));
            build.call_with(call, inputs).map(Some)
        });
    }
    false
}

/// `[b, h, s, d]` whose heads were repeated to `[b, h * times, s, d]`, each one `times` in a row.
fn unrepeated(graph: &Graph, id: NodeId) -> Option<(NodeId, Dim)> {
    let shape = &graph.node(id).shape;
    if let Some(source) = query::expand(graph, id) {
        // One head for all.
        let from = &graph.node(source).shape;
        let others = |axis: &usize| *axis != 1;
        let one =
            from.len() == 4 && from[1].is(1) && (0..4).filter(others).all(|axis| from[axis] == shape[axis]);
        return one.then(|| (source, shape[1].clone()));
    }
    let expanded = query::reshape(graph, id)?;
    let unsqueezed = query::expand(graph, expanded)?;
    let (five, before) = (&graph.node(expanded).shape, &graph.node(unsqueezed).shape);
    if shape.len() != 4 || five.len() != 5 || before.len() != 5 || !before[2].is(1) {
        return None;
    }
    let kept = [0, 1, 3, 4].iter().all(|&axis| five[axis] == before[axis]);
    let merged = shape[0] == five[0] && shape[1] == five[1].times(&five[2]) && shape[2..] == five[3..];
    let source = query::reshape(graph, unsqueezed)?;
    let squeezed = [&before[..2], &before[3..]].concat();
    (kept && merged && graph.node(source).shape == squeezed).then(|| (source, five[2].clone()))
}
