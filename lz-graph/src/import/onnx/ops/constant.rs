//! Constants and tensors that are made from sizes.

use lz_core::{DType, Tensor};

use super::super::constants::Files;
use super::super::model::AttributeValue;
use super::super::op::{Handler, Op, Outputs, one};
use super::super::tensor::NamedTensor;
use super::super::value::{Sizes, Value};
use super::reduce::single;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{ConstantData, NodeId, NodeKind};

pub const OPERATORS: &[(&str, Handler)] = &[
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("EyeLike", eye_like),
    ("OneHot", one_hot),
    ("Range", range),
    ("Trilu", trilu),
];

/// The elements of a tensor inside an attribute.
fn data(op: &Op<'_>, tensor: &NamedTensor<'_>) -> Result<ConstantData, GraphError> {
    Files::default().constant(tensor).map_err(|message| op.error(message))
}

fn constant(op: &mut Op<'_>) -> Outputs {
    if let Some(tensor) = op.tensor_attribute("value")? {
        let data = data(op, tensor)?;
        return one(op.build.constant(&tensor.name, data));
    }
    let floats = |values: &[f32], shape: &[i64]| Tensor::from_slice(values, shape);
    for name in ["value_float", "value_floats", "value_int", "value_ints"] {
        let tensor = match op.attribute(name) {
            None => continue,
            Some(AttributeValue::Float(value)) => floats(&[*value], &[]),
            Some(AttributeValue::Floats(values)) => floats(values, &[values.len() as i64]),
            Some(AttributeValue::Int(value)) => Tensor::from_slice(&[*value], &[]),
            Some(AttributeValue::Ints(values)) => Tensor::from_slice(values, &[values.len() as i64]),
            Some(_) => return Err(op.error(format!("the attribute `{name}` has an unexpected type"))),
        };
        let tensor = tensor.map_err(|reason| op.error(reason.to_string()))?;
        return one(op.build.owned(tensor));
    }
    Err(op.error("a constant that is neither a dense tensor nor numbers"))
}

fn constant_of_shape(op: &mut Op<'_>) -> Outputs {
    let shape = op.sizes(0)?;
    let value = match op.tensor_attribute("value")? {
        Some(tensor) => {
            let data = data(op, tensor)?;
            op.build.constant("", data)
        }
        None => op.build.scalar(0.0, DType::F32)?,
    };
    let scalar = op.build.reshape(value, Vec::new())?;
    // Short vectors of integers are sizes: exporters build shapes from them.
    if let (DType::I64, Some(number)) = (op.build.dtype(scalar), op.build.graph().scalar(value))
        && let [length] = shape.iter().map(Dim::constant).collect::<Vec<_>>()[..]
        && let Some(length @ 0..=64) = length
        && number.abs() < 1e9
    {
        return Ok(vec![Value::Sizes(Sizes::vector(vec![Dim::from(number as i64); length as usize]))]);
    }
    one(op.build.expand(scalar, &shape)?)
}

/// An integer as a float: a constant, or a size that was cast.
fn whole(op: &mut Op<'_>, index: usize) -> Option<Dim> {
    if let Some(number) = op.scalar(index) {
        return (number.fract() == 0.0 && number.abs() < 1e12).then(|| Dim::from(number as i64));
    }
    let node = op.x(index).ok()?;
    let graph = op.build.graph();
    let cast = graph.node(node);
    let input = cast.input(0).filter(|_| cast.calls(*lz_primitives::CAST))?;
    match &graph.node(input).kind {
        NodeKind::Sizes(dims) if dims.len() == 1 => dims.first().cloned(),
        _ => None,
    }
}

/// `start`, `start + delta`, … below `limit`: integers that depend on sizes, or floats.
fn range(op: &mut Op<'_>) -> Outputs {
    let start = op.x(0)?;
    let dtype = op.build.dtype(start);
    if dtype.is_float() {
        let (Some(start), Some(limit), Some(delta)) = (op.scalar(0), op.scalar(1), op.scalar(2)) else {
            let (Some(start), Some(limit), Some(delta)) = (whole(op, 0), whole(op, 1), whole(op, 2)) else {
                return Err(op.error("the number of elements depends on data"));
            };
            return integer_range(op, start, &limit, &delta, dtype);
        };
        let count = ((limit - start) / delta).ceil().max(0.0);
        if !count.is_finite() || count > 1e9 {
            return Err(op.error(format!("a range of {count} elements")));
        }
        let mut first = Tensor::zeros(&[1], dtype).map_err(|reason| op.error(reason.to_string()))?;
        first.view_mut().set(&[0], start);
        let first = op.build.owned(first);
        let params = [("count", (count as i64).into()), ("step", delta.into())];
        return one(op.build.call("primitive.arange", &[Some(first)], &params)?);
    }
    let (start, limit, delta) = (single(op, 0)?, single(op, 1)?, single(op, 2)?);
    integer_range(op, start, &limit, &delta, dtype)
}

fn integer_range(op: &mut Op<'_>, start: Dim, limit: &Dim, delta: &Dim, dtype: DType) -> Outputs {
    let step = match delta.constant() {
        Some(step) if step != 0 && step.abs() < 1 << 40 => step,
        _ => return Err(op.error(format!("a step of {delta}"))),
    };
    let (span, stride) = if step > 0 { (limit.minus(&start), step) } else { (start.minus(limit), -step) };
    let count = span.plus(&Dim::from(stride - 1)).floor_div(&Dim::from(stride)).larger(&Dim::from(0));
    one(op.build.arange(start, step, count, dtype)?)
}

/// `0 … size - 1` along one dimension of a tensor with this rank.
pub fn positions(op: &mut Op<'_>, size: Dim, axis: usize, rank: usize) -> Result<NodeId, GraphError> {
    let numbers = op.build.arange(Dim::from(0), 1, size.clone(), DType::I64)?;
    let mut shape = vec![Dim::from(1); rank];
    shape[axis] = size;
    op.build.reshape(numbers, shape)
}

/// Where column minus row compares to `k`, for the last two dimensions.
fn diagonal(op: &mut Op<'_>, rows: Dim, columns: Dim, function: &str, k: Dim) -> Result<NodeId, GraphError> {
    let (row, column) = (positions(op, rows, 0, 2)?, positions(op, columns, 1, 2)?);
    let shifted = op.build.binary_size("add", row, k, false)?;
    op.build.compare(function, column, shifted)
}

fn trilu(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let upper = op.flag("upper", true)?;
    let k = if op.has(1) { single(op, 1)? } else { Dim::from(0) };
    let shape = op.build.shape(x).to_vec();
    let [.., rows, columns] = shape.as_slice() else {
        return Err(op.error("the input must have two dimensions"));
    };
    let kept = diagonal(op, rows.clone(), columns.clone(), if upper { "ge" } else { "le" }, k)?;
    let dtype = op.build.dtype(x);
    let zero = op.build.scalar(0.0, dtype)?;
    one(op.build.select_where(kept, x, zero)?)
}

fn eye_like(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let k = op.int("k", 0)?;
    let dtype = op.dtype_attribute("dtype")?.unwrap_or_else(|| op.build.dtype(x));
    let Ok([rows, columns]) = <[Dim; 2]>::try_from(op.build.shape(x).to_vec()) else {
        return Err(op.error("the input must have two dimensions"));
    };
    let ones = diagonal(op, rows, columns, "eq", Dim::from(k))?;
    one(op.build.cast(ones, dtype)?)
}

/// Negative indices count from the end; others out of range give no hot element.
fn one_hot(op: &mut Op<'_>) -> Outputs {
    let (indices, values) = (op.x(0)?, op.x(2)?);
    let depth = match op.scalar(1) {
        Some(depth) if (0.0..1e9).contains(&depth) => Dim::from(depth as i64),
        Some(depth) => return Err(op.error(format!("depth is {depth}"))),
        None => single(op, 1)?,
    };
    let rank = op.build.rank(indices) + 1;
    let axis = op.int("axis", -1)?;
    let axis = op.build.axis_of_rank(axis, rank)?;
    let indices = op.build.cast(indices, DType::I64)?;
    let wrapped = op.build.binary_size("add", indices, depth.clone(), false)?;
    let negative = op.build.compare_scalar("lt", indices, 0.0)?;
    let indices = op.build.select_where(negative, wrapped, indices)?;
    let indices = op.build.unsqueeze(indices, axis)?;
    let classes = positions(op, depth, axis, rank)?;
    let hot = op.build.compare("eq", indices, classes)?;
    let (off, on) = (op.build.select(values, 0, Dim::from(0))?, op.build.select(values, 0, Dim::from(1))?);
    one(op.build.select_where(hot, on, off)?)
}
