//! Simplifies views: identities, views of views, parts of concatenations, exact casts.

use lz_core::DType;

use super::query;
use super::rewriter::Rewriter;
use crate::dim::Dim;
use crate::graph::{Graph, NodeId, NodeKind, View};

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let node = rewriter.node(id);
        match &node.kind {
            NodeKind::View(view) => simplify_view(rewriter, id, &view.clone()),
            NodeKind::Concat(axis) => join_slices(rewriter, id, *axis),
            _ => simplify_cast(rewriter, id),
        }
    });
}

fn simplify_view(rewriter: &mut Rewriter<'_>, id: NodeId, view: &View) {
    let graph = rewriter.graph();
    let node = graph.node(id);
    let Some(input) = node.input(0) else { return };
    let shape = node.shape.clone();
    let before = graph.node(input);
    let identity = match view {
        View::Reshape | View::Expand => before.shape == shape,
        View::Permute(order) => order.is_sorted(),
        View::Slice { start, step, .. } => start.is(0) && *step == 1 && before.shape == shape,
    };
    if identity {
        rewriter.rewrite(id, &[], |_| Ok(Some(input)));
        return;
    }
    let source = before.input(0);
    match (view, before.view(), source) {
        (View::Reshape, Some(View::Reshape), Some(source)) => {
            rewriter.rewrite(id, &[], |build| build.reshape(source, shape).map(Some));
        }
        (View::Expand, Some(View::Expand), Some(source)) => {
            rewriter.rewrite(id, &[], |build| build.expand(source, &shape).map(Some));
        }
        (View::Permute(outer), Some(View::Permute(inner)), Some(source)) => {
            let order: Vec<usize> = outer.iter().map(|&axis| inner[axis]).collect();
            rewriter.rewrite(id, &[], |build| build.permute(source, &order).map(Some));
        }
        (
            View::Slice { axis, start, step },
            Some(View::Slice { axis: inner_axis, start: inner_start, step: inner_step }),
            Some(source),
        ) if axis == inner_axis => {
            let start = inner_start.plus(&start.times(&Dim::from(*inner_step)));
            let Some(step) = step.checked_mul(*inner_step) else { return };
            let (axis, length) = (*axis, shape[*axis].clone());
            rewriter.rewrite(id, &[], |build| build.slice(source, axis, start, length, step).map(Some));
        }
        _ => slice_of_concat(rewriter, id),
    }
}

/// A slice that lies within one part of a concatenation is a slice of that part.
fn slice_of_concat(rewriter: &mut Rewriter<'_>, id: NodeId) {
    let graph = rewriter.graph();
    let Some(slice) = query::slice(graph, id).filter(|slice| slice.step == 1) else { return };
    let joined = graph.node(slice.x);
    if !matches!(joined.kind, NodeKind::Concat(axis) if axis == slice.axis) {
        return;
    }
    let (axis, length) = (slice.axis, graph.node(id).shape[slice.axis].clone());
    let mut offset = Dim::from(0);
    for part in joined.inputs.iter().flatten().copied() {
        let size = graph.node(part).shape[axis].clone();
        let start = slice.start.minus(&offset);
        let rest = size.minus(&start).minus(&length);
        if start.constant().is_some_and(|start| start >= 0) && rest.constant().is_some_and(|rest| rest >= 0) {
            rewriter.rewrite(id, &[], |build| build.slice(part, axis, start, length, 1).map(Some));
            return;
        }
        offset = offset.plus(&size);
    }
}

/// Adjacent slices that are joined again are the tensor itself.
fn join_slices(rewriter: &mut Rewriter<'_>, id: NodeId, axis: usize) {
    let graph = rewriter.graph();
    let mut source = None;
    let mut end = Dim::from(0);
    for part in graph.node(id).inputs.iter().flatten() {
        let Some(slice) = query::slice(graph, *part) else { return };
        if slice.axis != axis
            || slice.step != 1
            || *slice.start != end
            || *source.get_or_insert(slice.x) != slice.x
        {
            return;
        }
        end = end.plus(&graph.node(*part).shape[axis]);
    }
    if let Some(source) = source.filter(|source| graph.node(*source).shape[axis] == end) {
        rewriter.rewrite(id, &[], |_| Ok(Some(source)));
    }
}

/// A cast of an exact cast is one cast.
fn simplify_cast(rewriter: &mut Rewriter<'_>, id: NodeId) {
    let graph = rewriter.graph();
    let Some(inner) = query::cast(graph, id) else { return };
    let (to, middle) = (graph.node(id).dtype, graph.node(inner).dtype);
    if middle == to {
        rewriter.rewrite(id, &[], |_| Ok(Some(inner)));
        return;
    }
    if let Some(source) = query::cast(graph, inner).filter(|source| is_exact(graph, *source, middle)) {
        rewriter.rewrite(id, &[inner], |build| build.cast(source, to).map(Some));
    }
}

/// Whether every value of the tensor's dtype exists in another dtype.
fn is_exact(graph: &Graph, source: NodeId, to: DType) -> bool {
    use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
    match graph.node(source).dtype {
        BF16 | F16 => matches!(to, F32 | F64),
        F32 | I32 => matches!(to, F64) || (graph.node(source).dtype == I32 && to == I64),
        Bool => true,
        U8 => matches!(to, I16 | I32 | I64 | F16 | F32 | F64),
        I8 => matches!(to, I16 | I32 | I64 | F16 | BF16 | F32 | F64),
        I16 => matches!(to, I32 | I64 | F32 | F64),
        _ => false,
    }
}
