//! Reductions, running sums and the largest elements.

use super::super::op::{Handler, Op, Outputs, one};
use crate::build::Builder;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[
    ("ArgMax", |op| arg_reduce(op, "argmax")),
    ("ArgMin", |op| arg_reduce(op, "argmin")),
    ("CumSum", cumsum),
    ("GlobalAveragePool", |op| global_pool(op, "mean")),
    ("GlobalMaxPool", |op| global_pool(op, "maximum")),
    ("ReduceL1", |op| reduce(op, 18, Some("absolute"), "sum", None)),
    ("ReduceL2", |op| reduce(op, 18, None, "sum_squares", Some("square_root"))),
    ("ReduceLogSum", |op| reduce(op, 18, None, "sum", Some("log"))),
    ("ReduceLogSumExp", log_sum_exp),
    ("ReduceMax", |op| reduce(op, 18, None, "maximum", None)),
    ("ReduceMean", |op| reduce(op, 18, None, "mean", None)),
    ("ReduceMin", |op| reduce(op, 18, None, "minimum", None)),
    ("ReduceProd", |op| reduce(op, 18, None, "prod", None)),
    ("ReduceSum", |op| reduce(op, 13, None, "sum", None)),
    ("ReduceSumSquare", |op| reduce(op, 18, None, "sum_squares", None)),
    ("TopK", topk),
];

/// The axes of a reduction: `None` if nothing is reduced, all if none is named.
fn reduced_axes(op: &mut Op<'_>, since: i64, rank: usize) -> Result<Option<Vec<usize>>, GraphError> {
    let axes = op.axes(since, 1, rank)?.filter(|axes| !axes.is_empty());
    let keeps_all = op.flag("noop_with_empty_axes", false)?;
    Ok(match axes {
        Some(axes) => Some(axes),
        None if keeps_all => None,
        None => Some((0..rank).collect()),
    })
}

/// A reduction with functions of each element before and of the result after it.
fn reduce(op: &mut Op<'_>, since: i64, before: Option<&str>, function: &str, after: Option<&str>) -> Outputs {
    let mut x = op.x(0)?;
    let keep_dims = op.flag("keepdims", true)?;
    let rank = op.build.rank(x);
    let axes = reduced_axes(op, since, rank)?;
    if let Some(before) = before {
        x = op.build.unary(before, x)?;
    }
    let mut result = match axes {
        Some(axes) => reduction(op.build, function, x, &axes, keep_dims)?,
        None if function == "sum_squares" => op.build.binary("mul", x, x)?,
        None => x,
    };
    if let Some(after) = after {
        result = op.build.unary(after, result)?;
    }
    one(result)
}

/// A reduction in the dtype of `x`.
pub fn reduction(
    build: &mut Builder,
    function: &str,
    x: NodeId,
    axes: &[usize],
    keep_dims: bool,
) -> Result<NodeId, GraphError> {
    let dtype = build.dtype(x);
    let extreme = matches!(function, "maximum" | "minimum");
    if extreme && axes.iter().any(|&axis| build.shape(x)[axis].is(0)) {
        return empty_extreme(build, function, x, axes, keep_dims);
    }
    if dtype.is_float() {
        return build.reduce(function, x, axes, keep_dims);
    }
    let reduced = match function {
        "mean" => return Err(build.error(format!("a mean of {}, expected floats", dtype.name()))),
        "sum_squares" => {
            let squares = build.binary("mul", x, x)?;
            build.reduce("sum", squares, axes, keep_dims)?
        }
        _ => build.reduce(function, x, axes, keep_dims)?,
    };
    build.cast(reduced, dtype)
}

/// The neutral element of a maximum or minimum of nothing.
fn empty_extreme(
    build: &mut Builder,
    function: &str,
    x: NodeId,
    axes: &[usize],
    keep_dims: bool,
) -> Result<NodeId, GraphError> {
    let dtype = build.dtype(x);
    if !dtype.is_float() {
        return Err(build.error(format!("the {function} of no elements of {}", dtype.name())));
    }
    let sizes = build.shape(x).iter().enumerate();
    let kept = sizes.filter(|(axis, _)| keep_dims || !axes.contains(axis));
    let shape: Vec<Dim> =
        kept.map(|(axis, size)| if axes.contains(&axis) { Dim::from(1) } else { size.clone() }).collect();
    let value = if function == "maximum" { f64::NEG_INFINITY } else { f64::INFINITY };
    build.full(&shape, value, dtype)
}

/// With the largest element subtracted, so that exponentials do not overflow.
fn log_sum_exp(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let keep_dims = op.flag("keepdims", true)?;
    let rank = op.build.rank(x);
    let Some(axes) = reduced_axes(op, 18, rank)? else { return one(x) };
    let build = &mut *op.build;
    if axes.iter().any(|&axis| build.shape(x)[axis].is(0)) {
        let powers = build.unary("exp", x)?;
        let sum = reduction(build, "sum", powers, &axes, keep_dims)?;
        return one(build.unary("log", sum)?);
    }
    let dtype = build.dtype(x);
    let largest = reduction(build, "maximum", x, &axes, true)?;
    let finite = build.call("primitive.test", &[Some(largest)], &[("function", "is_finite".into())])?;
    let zero = build.scalar(0.0, dtype)?;
    let shift = build.select_where(finite, largest, zero)?;
    let shifted = build.binary("sub", x, shift)?;
    let powers = build.unary("exp", shifted)?;
    let sum = reduction(build, "sum", powers, &axes, true)?;
    let logarithm = build.unary("log", sum)?;
    let result = build.binary("add", logarithm, shift)?;
    if keep_dims {
        return one(result);
    }
    let sizes = build.shape(result).iter().enumerate();
    let shape = sizes.filter(|(axis, _)| !axes.contains(axis)).map(|(_, size)| size.clone()).collect();
    one(build.reshape(result, shape)?)
}

fn arg_reduce(op: &mut Op<'_>, function: &str) -> Outputs {
    let x = op.x(0)?;
    let axis = op.axis(0, x)?;
    let (keep_dims, last) = (op.flag("keepdims", true)?, op.flag("select_last_index", false)?);
    one(op.build.arg_reduce(function, x, axis, keep_dims, last)?)
}

fn cumsum(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let Some(axis) = single(op, 1)?.constant() else { return Err(op.error("the axis must be a constant")) };
    let axis = op.build.axis(x, axis)?;
    let (exclusive, reverse) = (op.flag("exclusive", false)?, op.flag("reverse", false)?);
    one(op.build.cumsum(x, axis, exclusive, reverse)?)
}

fn topk(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let axis = op.axis(-1, x)?;
    let k = if op.opset < 10 { Dim::from(op.int("k", 0)?) } else { single(op, 1)? };
    let (largest, sorted) = (op.flag("largest", true)?, op.flag("sorted", true)?);
    let (values, indices) = op.build.topk(x, axis, k, largest, sorted)?;
    Ok(vec![values.into(), indices.into()])
}

/// The only element of an input of integers.
pub fn single(op: &mut Op<'_>, index: usize) -> Result<Dim, GraphError> {
    match <[Dim; 1]>::try_from(op.sizes(index)?) {
        Ok([size]) => Ok(size),
        Err(sizes) => Err(op.error(format!("input {index} has {} elements, expected 1", sizes.len()))),
    }
}

fn global_pool(op: &mut Op<'_>, function: &str) -> Outputs {
    let x = op.x(0)?;
    let axes: Vec<usize> = (2..op.build.rank(x)).collect();
    if axes.is_empty() {
        return Err(op.error("pooling requires dimensions after batch and channels"));
    }
    one(reduction(op.build, function, x, &axes, true)?)
}
