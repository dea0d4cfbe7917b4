//! Positions: integers that are affine functions of a tensor's indices, and conditions on them.
//!
//! Causal masks compare positions of queries and keys. The analysis follows ranges, views and integer arithmetic symbolically, and
//! recognizes triangular constants, so that a mask is understood whatever its spelling.

use lz_core::DType;

use super::query;
use crate::dim::{Dim, Symbol};
use crate::graph::{Graph, NodeId, Param, View};

/// `constant + Σ_i coefficients[i] * index[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    pub constant: Dim,
    pub coefficients: Vec<i64>,
}

impl Affine {
    fn number(constant: Dim, rank: usize) -> Affine {
        Affine { constant, coefficients: vec![0; rank] }
    }

    fn combine(&self, other: &Affine, factor: i64) -> Option<Affine> {
        if self.coefficients.len() != other.coefficients.len() {
            return None;
        }
        let pairs = self.coefficients.iter().zip(&other.coefficients);
        Some(Affine {
            constant: self.constant.plus(&other.constant.times(&Dim::from(factor))),
            coefficients: pairs.map(|(a, b)| a.checked_add(b.checked_mul(factor)?)).collect::<Option<_>>()?,
        })
    }

    fn plus_number(&self, number: i64) -> Affine {
        Affine { constant: self.constant.plus(&Dim::from(number)), coefficients: self.coefficients.clone() }
    }

    /// The condition that holds where this one (a function that is at most 0) does not.
    pub fn negation(&self) -> Option<Affine> {
        // Not (f <= 0) is 1 - f <= 0 for integers.
        Some(self.negated()?.plus_number(1))
    }

    fn negated(&self) -> Option<Affine> {
        Affine::number(Dim::from(0), self.coefficients.len()).combine(self, -1)
    }

    /// Whether it is one number for all indices.
    fn is_number(&self) -> bool {
        self.coefficients.iter().all(|coefficient| *coefficient == 0)
    }

    /// Numbers between which every value lies, for a tensor of this shape.
    fn bounds(&self, search: &Search, shape: &[Dim]) -> (i128, i128) {
        let (mut low, mut high) = (self.constant.clone(), self.constant.clone());
        for (coefficient, size) in self.coefficients.iter().zip(shape) {
            let last = size.minus(&Dim::from(1)).times(&Dim::from(*coefficient));
            let end = if *coefficient < 0 { &mut low } else { &mut high };
            *end = end.plus(&last);
        }
        let ranges = |symbol| search.range(symbol);
        (low.bounds(&ranges).0, high.bounds(&ranges).1)
    }

    /// The same function of the indices of a view.
    fn through(&self, graph: &Graph, view_id: NodeId, search: &Search) -> Option<Affine> {
        let view = graph.node(view_id).view()?;
        if self.is_number() {
            return Some(Affine::number(self.constant.clone(), graph.node(view_id).rank()));
        }
        let (from, to) = (search.shape(graph, graph.node(view_id).input(0)?), search.shape(graph, view_id));
        let mut constant = self.constant.clone();
        let coefficients = match view {
            View::Permute(order) => order.iter().map(|&axis| self.coefficients[axis]).collect(),
            View::Expand => {
                let missing = to.len() - from.len();
                let repeated = |axis: usize| from[axis].is(1) && !to[axis + missing].is(1);
                let kept =
                    (0..from.len()).map(|axis| if repeated(axis) { 0 } else { self.coefficients[axis] });
                std::iter::repeat_n(0, missing).chain(kept).collect()
            }
            View::Slice { axis, start, step } => {
                constant = constant.plus(&search.size(start).times(&Dim::from(self.coefficients[*axis])));
                let mut coefficients = self.coefficients.clone();
                coefficients[*axis] = coefficients[*axis].checked_mul(*step)?;
                coefficients
            }
            View::Reshape => {
                // Dimensions of size 1 come and go.
                let mut sources = (0..from.len()).filter(|axis| !from[*axis].is(1));
                let mut coefficients = Vec::with_capacity(to.len());
                for size in &to {
                    if size.is(1) {
                        coefficients.push(0);
                        continue;
                    }
                    let source = sources.next().filter(|axis| from[*axis] == *size)?;
                    coefficients.push(self.coefficients[source]);
                }
                if sources.next().is_some() {
                    return None;
                }
                coefficients
            }
        };
        Some(Affine { constant, coefficients })
    }
}

/// Steps of one analysis: masks are small expressions, and a node may be reached in many ways.
const MAX_STEPS: u32 = 1000;

/// One analysis. A tensor without elements has any property, so the sizes of the analyzed tensor count as at least 1.
struct Search {
    steps: u32,
    ranges: Vec<(i64, i64)>,
}

impl Search {
    fn of(graph: &Graph, id: NodeId) -> Search {
        let mut ranges: Vec<(i64, i64)> = graph.symbols.iter().map(|info| (info.min, info.max)).collect();
        for symbol in graph.node(id).shape.iter().filter_map(Dim::symbol) {
            if let Some((least, _)) = ranges.get_mut(symbol.0 as usize) {
                *least = (*least).max(1);
            }
        }
        Search { steps: 0, ranges }
    }

    fn range(&self, symbol: Symbol) -> (i64, i64) {
        self.ranges.get(symbol.0 as usize).copied().unwrap_or((i64::MIN, i64::MAX))
    }

    /// A size within the ranges.
    fn size(&self, dim: &Dim) -> Dim {
        dim.within(&|symbol| self.range(symbol))
    }

    fn shape(&self, graph: &Graph, id: NodeId) -> Vec<Dim> {
        graph.node(id).shape.iter().map(|dim| self.size(dim)).collect()
    }
}

/// A bool tensor that is true where an affine function is at most 0.
pub fn condition(graph: &Graph, id: NodeId) -> Option<Affine> {
    condition_within(graph, id, &mut Search::of(graph, id))
}

/// Whether a bool tensor is true everywhere or false everywhere, for all sizes that the graph accepts.
pub fn truth(graph: &Graph, id: NodeId) -> Option<bool> {
    truth_within(graph, id, &mut Search::of(graph, id))
}

fn truth_within(graph: &Graph, id: NodeId, search: &mut Search) -> Option<bool> {
    let node = graph.node(id);
    if node.dtype != DType::Bool {
        return None;
    }
    if node.view().is_some() {
        return truth_within(graph, node.input(0)?, search);
    }
    if let Some(value) = graph.scalar(id) {
        return Some(value != 0.0);
    }
    if let Some((difference, equal)) = equality(graph, id, search) {
        let (low, high) = difference.bounds(search, &node.shape);
        if low == 0 && high == 0 {
            return Some(equal);
        }
        return (low > 0 || high < 0).then_some(!equal);
    }
    let (low, high) = condition_within(graph, id, search)?.bounds(search, &node.shape);
    if high <= 0 {
        return Some(true);
    }
    (low > 0).then_some(false)
}

/// The difference of the operands of `eq` (true) or `ne` (false).
fn equality(graph: &Graph, id: NodeId, search: &mut Search) -> Option<(Affine, bool)> {
    let (difference, function) = difference(graph, id, search)?;
    match function {
        "eq" => Some((difference, true)),
        "ne" => Some((difference, false)),
        _ => None,
    }
}

/// The difference of the operands of a comparison, and its function.
fn difference<'g>(graph: &'g Graph, id: NodeId, search: &mut Search) -> Option<(Affine, &'g str)> {
    let node = graph.node(id);
    if query::calls(graph, id, "primitive.compare") {
        let (a, b) = (positions(graph, node.input(0)?, search)?, positions(graph, node.input(1)?, search)?);
        return Some((a.combine(&b, -1)?, query::case(graph, id, "function")?));
    }
    if query::calls(graph, id, "primitive.compare_scalar") {
        let value =
            query::float(graph, id, "value").filter(|value| value.fract() == 0.0 && value.abs() < 9e15)?;
        let x = positions(graph, node.input(0)?, search)?;
        return Some((x.plus_number(-(value as i64)), query::case(graph, id, "function")?));
    }
    None
}

/// An integer tensor as an affine function of its indices.
fn positions(graph: &Graph, id: NodeId, search: &mut Search) -> Option<Affine> {
    search.steps += 1;
    if search.steps > MAX_STEPS {
        return None;
    }
    let node = graph.node(id);
    let rank = node.rank();
    if node.view().is_some() {
        return positions(graph, node.input(0)?, search)?.through(graph, id, search);
    }
    if let Some(constant) = graph.readable_constant(id) {
        return constant_positions(&constant.view());
    }
    if let crate::graph::NodeKind::Sizes(dims) = &node.kind {
        return match dims.as_slice() {
            [one] => Some(Affine::number(search.size(one), rank)),
            _ => None,
        };
    }
    if query::calls(graph, id, "primitive.arange") {
        let start = positions(graph, node.input(0)?, search)?.constant;
        let step = query::float(graph, id, "step")?;
        let coefficients = vec![step as i64];
        return (step.fract() == 0.0).then_some(Affine { constant: start, coefficients });
    }
    if let Some(inner) = query::cast(graph, id) {
        let integers = |dtype| matches!(dtype, DType::I32 | DType::I64);
        if !integers(node.dtype) {
            return None;
        }
        return match graph.node(inner).dtype {
            DType::Bool => {
                let value = truth_within(graph, inner, search)?;
                Some(Affine::number(Dim::from(i64::from(value)), rank))
            }
            dtype if integers(dtype) => positions(graph, inner, search),
            _ => None,
        };
    }
    if let crate::graph::NodeKind::Concat(axis) = node.kind {
        return joined(graph, id, axis, search);
    }
    if query::calls(graph, id, "primitive.where") {
        let branch = if truth_within(graph, node.input(0)?, search)? { 1 } else { 2 };
        return positions(graph, node.input(branch)?, search);
    }
    if query::calls(graph, id, "primitive.gather") {
        // Slices of equal elements are equal.
        let table = positions(graph, node.input(0)?, search)?;
        return table.is_number().then(|| Affine::number(table.constant.clone(), rank));
    }
    if query::calls(graph, id, "primitive.cumsum") {
        let plain = query::flag(graph, id, "exclusive") == Some(false)
            && query::flag(graph, id, "reverse") == Some(false);
        let x = positions(graph, node.input(0)?, search).filter(|x| plain && x.is_number())?;
        let mut sums = x.clone();
        *sums.coefficients.last_mut()? = x.constant.constant()?;
        return Some(sums);
    }
    if let Some((function, a, b)) = query::binary(graph, id) {
        let factor = match function {
            "add" => 1,
            "sub" => -1,
            _ => return None,
        };
        return positions(graph, a, search)?.combine(&positions(graph, b, search)?, factor);
    }
    if query::calls(graph, id, "primitive.binary_int_scalar") {
        let Param::Int(value) = query::param(graph, id, "value")? else { return None };
        let x = positions(graph, node.input(0)?, search)?;
        let reversed = query::flag(graph, id, "reversed")?;
        let value = search.size(&value);
        let number = Affine::number(value.clone(), rank);
        return match (query::case(graph, id, "function")?, reversed) {
            ("add", _) => x.combine(&number, 1),
            ("sub", false) => x.combine(&number, -1),
            ("sub", true) => number.combine(&x, -1),
            ("mul", _) => Affine::number(Dim::from(0), rank).combine(&x, value.constant()?),
            _ => None,
        };
    }
    None
}

/// Parts that continue each other along a dimension.
fn joined(graph: &Graph, id: NodeId, axis: usize, search: &mut Search) -> Option<Affine> {
    let parts: Vec<NodeId> = graph.node(id).inputs.iter().flatten().copied().collect();
    let functions = parts.iter().map(|part| positions(graph, *part, search)).collect::<Option<Vec<_>>>()?;
    let sizes: Vec<Dim> = parts.iter().map(|part| search.size(&graph.node(*part).shape[axis])).collect();
    // A part of one element says nothing about the slope.
    let slope = sizes.iter().zip(&functions).find(|(size, _)| !size.is(1));
    let slope = slope.map_or(0, |(_, function)| function.coefficients[axis]);
    let mut offset = Dim::from(0);
    let mut whole: Option<Affine> = None;
    for (size, mut function) in sizes.iter().zip(functions) {
        if size.is(1) {
            function.coefficients[axis] = slope;
        }
        function.constant = function.constant.minus(&offset.times(&Dim::from(function.coefficients[axis])));
        if *whole.get_or_insert_with(|| function.clone()) != function {
            return None;
        }
        offset = offset.plus(size);
    }
    whole
}

/// A constant that counts along at most one dimension, or is one number.
fn constant_positions(view: &lz_core::TensorView<'_>) -> Option<Affine> {
    if !matches!(view.dtype(), DType::I32 | DType::I64) {
        return None;
    }
    let shape = view.shape().to_vec();
    if view.elements() == 0 {
        return None;
    }
    let origin = vec![0i64; shape.len()];
    let first = view.int_at(&origin);
    let mut coefficients = vec![0; shape.len()];
    for axis in (0..shape.len()).filter(|axis| shape[*axis] > 1) {
        let mut next = origin.clone();
        next[axis] = 1;
        coefficients[axis] = view.int_at(&next).checked_sub(first)?;
    }
    let predict = |index: &[i64]| -> i64 {
        first.wrapping_add(index.iter().zip(&coefficients).map(|(i, c)| i.wrapping_mul(*c)).sum::<i64>())
    };
    let all = lz_core::tensor::Indices::new(&shape).all(|index| view.int_at(&index) == predict(&index));
    all.then(|| Affine { constant: Dim::from(first), coefficients })
}

fn condition_within(graph: &Graph, id: NodeId, search: &mut Search) -> Option<Affine> {
    let node = graph.node(id);
    if node.dtype != DType::Bool {
        return None;
    }
    if node.view().is_some() {
        return condition_within(graph, node.input(0)?, search)?.through(graph, id, search);
    }
    if let Some(constant) = graph.readable_constant(id) {
        return triangle(&constant.view());
    }
    if let Some(("logical_not" | "bitwise_not", x)) = query::unary(graph, id) {
        return condition_within(graph, x, search)?.negation();
    }
    let (difference, function) = difference(graph, id, search)?;
    match function {
        "le" => Some(difference),
        "lt" => Some(difference.plus_number(1)),
        "ge" => difference.negated(),
        "gt" => Some(difference.negated()?.plus_number(1)),
        _ => None,
    }
}

/// A constant that is true on and below a diagonal of its last two dimensions, equal for all others.
fn triangle(view: &lz_core::TensorView<'_>) -> Option<Affine> {
    let shape = view.shape().to_vec();
    let rank = shape.len();
    if rank < 2 || view.elements() == 0 {
        return None;
    }
    let (rows, columns) = (rank - 2, rank - 1);
    // The diagonal follows from the first row that is neither full nor empty.
    let visible = |row: i64| {
        let mut index = vec![0i64; rank];
        index[rows] = row;
        let count = (0..shape[columns]).filter(|column| {
            index[columns] = *column;
            view.int_at(&index) != 0
        });
        count.count() as i64
    };
    let diagonal = (0..shape[rows])
        .map(|row| (row, visible(row)))
        .find(|(_, count)| *count > 0 && *count < shape[columns])
        .map(|(row, count)| count - 1 - row)?;
    let all = lz_core::tensor::Indices::new(&shape)
        .all(|index| (view.int_at(&index) != 0) == (index[columns] <= index[rows] + diagonal));
    let mut coefficients = vec![0; rank];
    (coefficients[rows], coefficients[columns]) = (-1, 1);
    all.then(|| Affine { constant: Dim::from(-diagonal), coefficients })
}
