//! Masks of attention that are a function of positions become params: causal, and a window of keys.
//!
//! A mask is a conjunction of conditions. Those that compare positions are absorbed; the others (padding) stay a mask.

use super::affine::{self, Affine};
use super::matmul;
use super::query;
use super::rewriter::Rewriter;
use crate::dim::Dim;
use crate::graph::{Graph, NodeId, Param};

/// Operations whose mask has dimensions `[batch, heads, queries, keys]` and that have causal params.
const MASKED: [&str; 2] = ["attention.gqa.prefill", "attention.standard.prefill"];

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let graph = rewriter.graph();
        if !MASKED.iter().any(|name| query::calls(graph, id, name)) {
            return;
        }
        let _ = absorb(rewriter, id) || narrow(rewriter, id) || select_last(rewriter, id);
    });
}

/// What a mask consists of.
#[derive(Default)]
struct Parts {
    /// Keys up to the query's position plus this are visible.
    causal: Option<Dim>,
    /// Keys from the query's position plus this on are visible.
    first: Option<Dim>,
    /// Other conditions.
    rest: Vec<NodeId>,
    /// Whether a condition always holds.
    trivial: bool,
}

fn absorb(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let node = graph.node(id);
    // ALiBi slopes depend on the offset of positions as well.
    let Some(mask) = node.input(3).filter(|_| node.input(4).is_none()) else { return false };
    let Some(visible) = as_condition(graph, mask) else { return false };
    let mut parts = Parts::default();
    collect(graph, visible.condition, visible.inverted, &mut parts);
    let absorbs = parts.causal.is_some() || parts.first.is_some() || parts.trivial;
    if !absorbs || (visible.finite && !parts.rest.is_empty()) {
        return false;
    }
    // A finite number leaves rows without visible keys with equal weights, which no param states: the first key must be visible.
    let first_is_visible = || parts.causal.as_ref().is_some_and(|offset| is_at_least_zero(graph, offset));
    let hides = parts.causal.is_some() || parts.first.is_some();
    if visible.finite && hides && (parts.first.is_some() || !first_is_visible()) {
        return false;
    }
    let Some(own) = Geometry::of(graph, id) else { return false };
    let Some(params) = own.with(&parts) else { return false };
    let Some(mut call) = node.call().cloned() else { return false };
    for (name, value) in params {
        let position = call.operation.schema().params.iter().position(|param| param.name == name);
        let Some(position) = position else { return false };
        call.params[position] = Some(value);
    }
    let mut inputs = node.inputs.clone();
    rewriter.rewrite(id, &[mask], |build| {
        let mut rest = None;
        for condition in parts.rest {
            let condition = query::before_expand(build.graph(), condition);
            rest = Some(match rest {
                None => condition,
                Some(other) => build.binary("bitwise_and", other, condition)?,
            });
        }
        inputs[3] = rest;
        build.call_with(call, inputs).map(Some)
    })
}

/// A mask is broadcast by the operation itself.
fn narrow(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let node = graph.node(id);
    let Some(mask) = node.input(3) else { return false };
    let narrow = query::before_expand(graph, mask);
    let Some(call) = node.call().cloned().filter(|_| narrow != mask) else { return false };
    let mut inputs = node.inputs.clone();
    inputs[3] = Some(narrow);
    rewriter.rewrite(id, &[mask], |build| build.call_with(call, inputs).map(Some))
}

/// Views of a selection between two numbers are views of its condition, whose structure is known.
fn select_last(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let node = graph.node(id);
    let Some(mask) = node.input(3) else { return false };
    let mut views = Vec::new();
    let mut source = mask;
    while graph.node(source).view().is_some() {
        let Some(input) = graph.node(source).input(0) else { return false };
        views.push(source);
        source = input;
    }
    if views.is_empty() || !query::calls(graph, source, "primitive.where") {
        return false;
    }
    let selection = graph.node(source);
    let number = |index| selection.input(index).and_then(|input| query::fill(graph, input));
    let (Some(condition), Some(a), Some(b)) = (selection.input(0), number(1), number(2)) else {
        return false;
    };
    let (dtype, mut inputs) = (selection.dtype, node.inputs.clone());
    let Some(call) = node.call().cloned() else { return false };
    rewriter.rewrite(id, &[mask], |build| {
        let condition = matmul::view_again(build, &views, condition);
        let (a, b) = (build.scalar(a, dtype)?, build.scalar(b, dtype)?);
        inputs[3] = Some(build.select_where(condition, a, b)?);
        build.call_with(call, inputs).map(Some)
    })
}

/// A mask as a condition for visible keys.
struct Visible {
    condition: NodeId,
    inverted: bool,
    /// Whether masked scores are very small instead of -∞.
    finite: bool,
}

/// A bool mask, or a float one that is 0 where a condition holds and -∞ (or the smallest number) elsewhere.
fn as_condition(graph: &Graph, mask: NodeId) -> Option<Visible> {
    if graph.node(mask).dtype == lz_core::DType::Bool {
        return Some(Visible { condition: mask, inverted: false, finite: false });
    }
    let mask = query::before_expand(graph, mask);
    if let Some(inner) = query::cast(graph, mask) {
        let inner = as_condition(graph, inner)?;
        return (graph.node(inner.condition).dtype == lz_core::DType::Bool).then_some(inner);
    }
    if !query::calls(graph, mask, "primitive.where") {
        return None;
    }
    let node = graph.node(mask);
    let (condition, a, b) =
        (node.input(0)?, query::fill(graph, node.input(1)?)?, query::fill(graph, node.input(2)?)?);
    let hidden = |value: f64| value <= -1e30 || (node.dtype == lz_core::DType::F16 && value <= -60_000.0);
    if a == 0.0 && hidden(b) {
        Some(Visible { condition, inverted: false, finite: b.is_finite() })
    } else if b == 0.0 && hidden(a) {
        Some(Visible { condition, inverted: true, finite: a.is_finite() })
    } else {
        None
    }
}

/// Splits a conjunction. An inverted condition is not split.
fn collect(graph: &Graph, id: NodeId, inverted: bool, parts: &mut Parts) {
    if !inverted {
        if let Some(("bitwise_and" | "mul" | "minimum", a, b)) = query::binary(graph, id) {
            collect(graph, a, false, parts);
            collect(graph, b, false, parts);
            return;
        }
        // An expanded conjunction is a conjunction.
        if let Some(inner) = query::expand(graph, id)
            && query::binary(graph, inner).is_some()
            && graph.node(inner).rank() == graph.node(id).rank()
        {
            collect(graph, inner, false, parts);
            return;
        }
    }
    if affine::truth(graph, id) == Some(!inverted) {
        parts.trivial = true;
        return;
    }
    let condition = affine::condition(graph, id);
    let condition = if inverted { condition.and_then(|condition| condition.negation()) } else { condition };
    match condition.as_ref().and_then(diagonal) {
        Some(Diagonal::Until(offset)) if parts.causal.is_none() => parts.causal = Some(offset),
        Some(Diagonal::From(offset)) if parts.first.is_none() => parts.first = Some(offset),
        _ => parts.rest.push(id),
    }
}

enum Diagonal {
    /// `j <= i + offset`.
    Until(Dim),
    /// `j >= i + offset`.
    From(Dim),
}

/// A condition on the difference of the last two indices.
fn diagonal(condition: &Affine) -> Option<Diagonal> {
    let (last, others) =
        condition.coefficients.split_last_chunk::<2>().map(|(others, last)| (last, others))?;
    if others.iter().any(|coefficient| *coefficient != 0) {
        return None;
    }
    match last {
        [-1, 1] => Some(Diagonal::Until(condition.constant.times(&Dim::from(-1)))),
        [1, -1] => Some(Diagonal::From(condition.constant.clone())),
        _ => None,
    }
}

/// The causal params of a call.
struct Geometry {
    causal: bool,
    offset: Dim,
    windowed: bool,
}

impl Geometry {
    fn of(graph: &Graph, id: NodeId) -> Option<Geometry> {
        let node = graph.node(id);
        let length = if query::case(graph, id, "layout")? == "BSHD" { 1 } else { 2 };
        let (q, k) = (graph.node(node.input(0)?), graph.node(node.input(1)?));
        let offset = match query::param(graph, id, "causal_offset") {
            Some(Param::Int(offset)) => offset,
            _ => k.shape[length].minus(&q.shape[length]),
        };
        let unlimited = |name| matches!(query::param(graph, id, name), Some(Param::Int(dim)) if dim.is(-1));
        let windowed = !unlimited("window_left") || !unlimited("window_right");
        Some(Geometry { causal: query::flag(graph, id, "causal")?, offset, windowed })
    }

    /// Params for the call that also does what the mask did; `None` if they cannot state it.
    fn with(&self, parts: &Parts) -> Option<Vec<(&'static str, Param)>> {
        let offset = parts.causal.as_ref().unwrap_or(&self.offset);
        let fixed = self.causal || self.windowed;
        if fixed && *offset != self.offset {
            return None;
        }
        let mut params = Vec::new();
        if parts.causal.is_some() || parts.first.is_some() {
            params.push(("causal_offset", Param::Int(offset.clone())));
        }
        if parts.causal.is_some() {
            params.push(("causal", Param::Bool(true)));
        }
        if let Some(first) = &parts.first {
            let left =
                offset.minus(first).constant().filter(|left| *left >= 0 && *left <= i64::from(i32::MAX))?;
            if self.windowed {
                return None;
            }
            params.push(("window_left", Param::Int(Dim::from(left))));
        }
        Some(params)
    }
}

/// Whether a size is not negative for any sizes that the graph accepts.
fn is_at_least_zero(graph: &Graph, dim: &Dim) -> bool {
    dim.bounds(&|symbol| graph.range(symbol)).0 >= 0
}
