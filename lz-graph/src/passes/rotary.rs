//! Rotary position embeddings written out: `x * cos + rotate(x) * sin`.
//!
//! Frameworks compute cosines and sines for every feature, each value twice; `posenc.rope` has one per pair. The half of the table is built
//! from what the whole one was computed of, after a proof that the other half repeats it.

use std::collections::HashMap;

use lz_core::DType;

use super::query;
use super::rewriter::Rewriter;
use crate::build::{Builder, ParamValue};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, NodeKind, View};

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let _ = rotation(rewriter, id) || partial(rewriter, id);
    });
}

/// Which features form pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pairing {
    /// Feature f and f + half.
    Halves,
    /// Features 2f and 2f + 1.
    Adjacent,
}

/// A rotation that is written out.
struct Rotation {
    x: NodeId,
    cos: NodeId,
    sin: NodeId,
    pairing: Pairing,
    interior: Vec<NodeId>,
}

fn rotation(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let known =
        matches!(graph.node(id).dtype, DType::F32 | DType::F16 | DType::BF16) && graph.node(id).rank() == 4;
    let Some(found) = find(graph, id).filter(|_| known) else { return false };
    if !rewriter.contains_all_uses(id, &found.interior) {
        return false;
    }
    let shape = graph.node(id).shape.clone();
    let Some(table) = Table::of(graph, &shape, found.cos) else { return false };
    if Table::of(graph, &shape, found.sin).as_ref() != Some(&table) {
        return false;
    }
    rewriter.rewrite(id, &found.interior, |build| {
        let mut halves = Halves { pairing: found.pairing, known: HashMap::new() };
        let (Some(cos), Some(sin)) = (halves.of(build, found.cos)?, halves.of(build, found.sin)?) else {
            return Ok(None);
        };
        let (cos, sin) = (table.rows(build, cos)?, table.rows(build, sin)?);
        let positions = table.positions(build)?;
        let params = [
            ("interleaved", ParamValue::Bool(found.pairing == Pairing::Adjacent)),
            ("layout", ParamValue::from(table.layout)),
        ];
        build.call("posenc.rope", &[Some(found.x), Some(cos), Some(sin), positions], &params).map(Some)
    })
}

/// `x * cos + rotate(x) * sin`, in any order.
fn find(graph: &Graph, id: NodeId) -> Option<Rotation> {
    let (a, b) = query::binary_of(graph, id, "add")?;
    for (straight, turned) in [(a, b), (b, a)] {
        let Some((c, d)) = query::binary_of(graph, turned, "mul") else { continue };
        for (rotated, sin) in [(c, d), (d, c)] {
            let mut interior = vec![straight, turned];
            let Some(turned) = rotated_half(graph, rotated, &mut interior) else { continue };
            let Some((e, f)) = query::binary_of(graph, straight, "mul") else { continue };
            let (x, cos) = if turned.is(graph, e) {
                (e, f)
            } else if turned.is(graph, f) {
                (f, e)
            } else {
                continue;
            };
            let pairing = turned.pairing;
            let (cos, sin) = (query::before_expand(graph, cos), query::before_expand(graph, sin));
            return Some(Rotation { x, cos, sin, pairing, interior });
        }
    }
    None
}

/// The features that were exchanged: `size` of them from `start` on.
struct Turned {
    source: NodeId,
    start: Dim,
    size: Dim,
    pairing: Pairing,
}

impl Turned {
    /// Whether a node has exactly these features.
    fn is(&self, graph: &Graph, id: NodeId) -> bool {
        if id == self.source {
            return self.start.is(0) && query::last(graph, id) == Some(&self.size);
        }
        query::slice(graph, id).is_some_and(|slice| {
            slice.x == self.source
                && slice.axis + 1 == graph.node(id).rank()
                && slice.step == 1
                && *slice.start == self.start
                && query::last(graph, id) == Some(&self.size)
        })
    }

    /// From the slices of the first and the second feature of every pair.
    fn of(graph: &Graph, first: NodeId, second: NodeId, pairing: Pairing) -> Option<Turned> {
        let (low, high) = (query::slice(graph, first)?, query::slice(graph, second)?);
        let half = query::last(graph, first)?;
        let (step, distance) = match pairing {
            Pairing::Halves => (1, half.clone()),
            Pairing::Adjacent => (2, Dim::from(1)),
        };
        let last = graph.node(first).rank().checked_sub(1)?;
        let fits = low.x == high.x
            && [low.axis, high.axis] == [last, last]
            && [low.step, high.step] == [step, step]
            && *high.start == low.start.plus(&distance)
            && query::last(graph, second) == Some(half);
        fits.then(|| Turned {
            source: low.x,
            start: low.start.clone(),
            size: half.times(&Dim::from(2)),
            pairing,
        })
    }
}

/// `cat(-x2, x1)` of the halves, or `stack(-x[1::2], x[::2])` of adjacent features.
fn rotated_half(graph: &Graph, id: NodeId, interior: &mut Vec<NodeId>) -> Option<Turned> {
    let last = graph.node(id).rank().checked_sub(1)?;
    if let Some([negated, first]) = parts(graph, id, last) {
        let second = negation(graph, negated)?;
        interior.extend([id, negated, first, second]);
        return Turned::of(graph, first, second, Pairing::Halves);
    }
    let stacked = query::reshape(graph, id)?;
    if graph.node(stacked).rank() != last + 2 {
        return None;
    }
    let [left, right] = parts(graph, stacked, last + 1)?;
    let (negated, even) = (column(graph, left)?, column(graph, right)?);
    let odd = negation(graph, negated)?;
    interior.extend([id, stacked, left, right, negated, even, odd]);
    Turned::of(graph, even, odd, Pairing::Adjacent)
}

/// The two parts of a concatenation.
fn parts(graph: &Graph, id: NodeId, axis: usize) -> Option<[NodeId; 2]> {
    let node = graph.node(id);
    let joined = matches!(node.kind, NodeKind::Concat(found) if found == axis);
    match node.inputs.as_slice() {
        [Some(a), Some(b)] if joined => Some([*a, *b]),
        _ => None,
    }
}

/// `-x` as a negation or a product with -1.
fn negation(graph: &Graph, id: NodeId) -> Option<NodeId> {
    if let Some(("neg", x)) = query::unary(graph, id) {
        return Some(x);
    }
    query::scaled(graph, id).filter(|(_, factor)| *factor == -1.0).map(|(x, _)| x)
}

/// `x` of `x[..., None]`.
fn column(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let x = query::reshape(graph, id)?;
    let (last, rows) = graph.node(id).shape.split_last()?;
    (last.is(1) && graph.node(x).shape == rows).then_some(x)
}

/// How cosines relate to the dimensions of x.
#[derive(Debug, Clone, PartialEq)]
struct Table {
    layout: &'static str,
    batch: Dim,
    seq: Dim,
    /// Whether every batch row has values of its own.
    per_row: bool,
}

impl Table {
    /// For cosines that are broadcast to x's shape.
    fn of(graph: &Graph, x: &[Dim], cos: NodeId) -> Option<Table> {
        let mut shape = graph.node(cos).shape.clone();
        while shape.len() < 4 {
            shape.insert(0, Dim::from(1));
        }
        let (layout, heads, seq) = if shape[1].is(1) && shape[2] == x[2] {
            ("BHSD", 1, 2)
        } else if shape[2].is(1) && shape[1] == x[1] {
            ("BSHD", 2, 1)
        } else {
            return None;
        };
        let per_row = !shape[0].is(1);
        let fits = shape[heads].is(1) && shape[3] == x[3] && (!per_row || shape[0] == x[0]);
        fits.then(|| Table { layout, batch: x[0].clone(), seq: x[seq].clone(), per_row })
    }

    /// One row per position of a batch row, or of all batch rows.
    fn rows(&self, build: &mut Builder, half: NodeId) -> Result<NodeId, GraphError> {
        let features = build.shape(half).last().cloned().unwrap_or_default();
        let rows = if self.per_row { self.batch.times(&self.seq) } else { self.seq.clone() };
        build.reshape(half, vec![rows, features])
    }

    /// Rows of the table per token, where tokens of different batch rows have different ones.
    fn positions(&self, build: &mut Builder) -> Result<Option<NodeId>, GraphError> {
        if !self.per_row {
            return Ok(None);
        }
        let rows = build.arange(Dim::from(0), 1, self.batch.times(&self.seq), DType::I64)?;
        build.reshape(rows, vec![self.batch.clone(), self.seq.clone()]).map(Some)
    }
}

/// Tensors whose last dimension has every value twice (in halves or adjacent), with every value once.
struct Halves {
    pairing: Pairing,
    known: HashMap<NodeId, Option<NodeId>>,
}

impl Halves {
    /// Every value once; `None` if the tensor does not provably repeat them.
    fn of(&mut self, build: &mut Builder, id: NodeId) -> Result<Option<NodeId>, GraphError> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let half = self.build(build, id)?;
        self.known.insert(id, half);
        Ok(half)
    }

    fn build(&mut self, build: &mut Builder, id: NodeId) -> Result<Option<NodeId>, GraphError> {
        let node = build.graph().node(id).clone();
        let Some(size) = node.shape.last() else { return Ok(None) };
        let half_size = size.floor_div(&Dim::from(2));
        let mut shape = node.shape.clone();
        let last = shape.len() - 1;
        shape[last] = half_size.clone();
        if let Some(once) = repeated(build.graph(), id, self.pairing) {
            return build.reshape(once, shape).map(Some);
        }
        match &node.kind {
            NodeKind::Constant(_) => {
                if !constant_repeats(build.graph(), id, self.pairing) {
                    return Ok(None);
                }
                let step = if self.pairing == Pairing::Halves { 1 } else { 2 };
                build.slice(id, last, Dim::from(0), half_size, step).map(Some)
            }
            NodeKind::View(view) => {
                let Some(input) = node.input(0) else { return Ok(None) };
                let keeps_last = match view {
                    View::Reshape | View::Expand => query::last(build.graph(), input) == Some(size),
                    View::Permute(order) => order.last() == Some(&last),
                    View::Slice { axis, .. } => *axis != last,
                };
                if !keeps_last {
                    return Ok(None);
                }
                let Some(inner) = self.of(build, input)? else { return Ok(None) };
                Ok(Some(build.push(node.kind.clone(), &[inner], shape, node.dtype)))
            }
            NodeKind::Call(call) => {
                // The table of a gather, or every operand of an elementwise function.
                let halved = match &*call.operation.name {
                    "primitive.gather" => 1,
                    name if is_elementwise(name) => node.inputs.len(),
                    _ => return Ok(None),
                };
                let mut inputs = node.inputs.clone();
                for input in inputs.iter_mut().take(halved).flatten() {
                    match self.of(build, *input)? {
                        Some(inner) => *input = inner,
                        None => return Ok(None),
                    }
                }
                build.call_with(call.clone(), inputs).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn is_elementwise(operation: &str) -> bool {
    matches!(operation, "primitive.unary" | "primitive.binary" | "primitive.binary_scalar" | "primitive.cast")
}

/// The tensor that is there twice: `cat(f, f)`, or `f[..., None].expand(2).reshape`.
fn repeated(graph: &Graph, id: NodeId, pairing: Pairing) -> Option<NodeId> {
    let last = graph.node(id).rank().checked_sub(1)?;
    match pairing {
        Pairing::Halves => parts(graph, id, last).filter(|[a, b]| a == b).map(|[once, _]| once),
        Pairing::Adjacent => {
            let pairs = query::reshape(graph, id)?;
            let (two, others) = graph.node(pairs).shape.split_last()?;
            if !two.is(2) || others.last()?.times(two) != graph.node(id).shape[last] {
                return None;
            }
            match query::expand(graph, pairs) {
                Some(single) => column(graph, single).filter(|once| graph.node(*once).shape == others),
                None => {
                    let [a, b] = parts(graph, pairs, others.len())?;
                    column(graph, a).filter(|_| a == b)
                }
            }
        }
    }
}

fn constant_repeats(graph: &Graph, id: NodeId, pairing: Pairing) -> bool {
    let Some(constant) = graph.readable_constant(id) else { return false };
    let view = constant.view();
    let Some(&size) = view.shape().last() else { return false };
    if size % 2 != 0 {
        return false;
    }
    let bits = view.bits();
    lz_core::tensor::Indices::new(view.shape()).all(|index| {
        let mut other = index.to_vec();
        let Some(feature) = other.last_mut() else { return false };
        *feature = match pairing {
            Pairing::Halves => (*feature + size / 2) % size,
            Pairing::Adjacent => *feature ^ 1,
        };
        bits.int_at(&index) == bits.int_at(&other)
    })
}

/// Features that are not rotated are copied by the operation itself.
fn partial(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some(last) = graph.node(id).rank().checked_sub(1) else { return false };
    let Some([rotated, rest]) = parts(graph, id, last) else { return false };
    if !query::calls(graph, rotated, "posenc.rope") || rewriter.uses(rotated) != 1 {
        return false;
    }
    let node = graph.node(rotated);
    let Some(low_id) = node.input(0) else { return false };
    let (Some(low), Some(high)) = (query::slice(graph, low_id), query::slice(graph, rest)) else {
        return false;
    };
    let width = query::last(graph, low_id);
    let covers =
        Some(high.start) == width && low.start.is(0) && query::last(graph, id) == query::last(graph, low.x);
    let axes = low.axis == last && high.axis == last && low.step == 1 && high.step == 1;
    // The operation rotates twice as many features as the table has.
    let half = node.input(1).and_then(|table| query::last(graph, table));
    let all_rotated = half.map(|half| half.times(&Dim::from(2))) == width.cloned();
    if low.x != high.x || !covers || !axes || !all_rotated {
        return false;
    }
    let Some(call) = node.call().cloned() else { return false };
    let mut inputs = node.inputs.clone();
    inputs[0] = Some(low.x);
    rewriter.rewrite(id, &[rotated], |build| build.call_with(call, inputs).map(Some))
}
